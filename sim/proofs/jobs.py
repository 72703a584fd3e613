"""The jobs that prove the blocks, and negative controls. In a negative control a block or its specification is faulty; the job
must refute it with a counterexample, which is replayed."""

from dataclasses import dataclass, field
from itertools import chain

from amaranth_tpu.hw.arithmetic.multiplier import Multiplier
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.hw.verilog.export import component_to_rtlil

from .blocks import BLOCKS
from .mutants import DropsSticky, FlushesLeastNormal, KeepsNaN, MarkSwitches, NotStrict, SwitchesLate
from .properties import specification
from .replay import replay
from .smt import Circuit, solve

__all__ = ["Counterexample", "Proof", "ProofJob", "proofs", "negative_controls"]


@dataclass(frozen=True)
class Counterexample:
    """Inputs for which a property is false."""

    property: str
    port: str
    inputs: dict  # inputs by name: one value per cycle, up to the cycle in which `port` is compared
    shown: tuple  # `(port, cycle)` of the inputs that occur in the property
    #: expected, found: Value of the output `port` that the property requires, and the value that the solver found.
    expected: int
    found: int
    #: simulated, golden: Value of `port` in a simulation with Icarus, and in the golden model in numpy.
    simulated: int | None
    golden: int | None


@dataclass(frozen=True)
class Proof:
    """The outcome of a :class:`ProofJob`. `result` is `proven`, `refuted` or `unknown`."""

    block: str
    value: str
    subject: str
    cycles: int
    properties: int
    result: str
    as_expected: bool
    seconds: float
    counterexample: Counterexample | None


@dataclass(frozen=True)
class ProofJob:
    """A job that proves all properties of one block. If `subject` describes a fault, the properties must be refuted."""

    block: str
    value: object
    subject: str = ""  # Description of the fault that was inserted. Empty without a fault.
    #: Specification of the arithmetic, as SMT-LIB text. It is correct unless it is itself the faulty subject.
    specification: str = field(default_factory=specification)
    mutate: type | None = None  # inserts a fault into a component: maps the correct component to a faulty one
    changes: str = ""  # inserts a fault into the netlist: Yosys commands
    harmless: bool = False  # True if the fault may have no effect. The job may then also prove the properties.

    def run(self, timeout):
        """Proves the properties in order, up to the first that cannot be proven within `timeout` seconds. Returns a
        :class:`Proof`."""
        block = BLOCKS[self.block]
        component = block.make(self.value)
        circuit = Circuit(self.mutate(component) if self.mutate else component, self.changes)
        properties = block.properties(self.value, 0)
        seconds, result, counterexample = 0.0, "proven", None
        multiplier = None
        if any(prop.factors for prop in properties):
            multiplier, seconds = self._multiplier(timeout)
        for index, prop in enumerate(properties):
            answer = solve(prop.script(circuit, self.specification, multiplier), timeout=timeout)
            seconds += answer.seconds
            if answer.result != "unsat":
                result = "refuted" if answer.result == "sat" else "unknown"
                counterexample = self._confirm(circuit, index, timeout) if answer.result == "sat" else None
                break
        return Proof(
            self.block,
            _value_text(self.value),
            self.subject,
            max(prop.cycle for prop in properties),
            len(properties),
            result,
            self._as_expected(result, counterexample),
            seconds,
            counterexample,
        )

    def _multiplier(self, timeout):
        """Returns `(circuit, seconds)`: the circuit of a multiplier if it is proven to meet the specification, else None; and the
        time used."""
        circuit = Circuit(Multiplier(lead=0), name="multiplier")
        (prop,) = BLOCKS["multiplier"].properties(0, 0)
        answer = solve(prop.script(circuit, self.specification), timeout=timeout)
        return (circuit if answer.result == "unsat" else None), answer.seconds

    def _confirm(self, circuit, index, timeout):
        """Returns a counterexample to property `index` from a state that can be reached after a reset, with the results of its
        simulation. Returns None if there is none."""
        block = BLOCKS[self.block]
        prop = block.properties(self.value, len(block.start.get("rst", ())))[index].after(block.start, circuit.inputs)
        names = {port: [circuit.input("run", port, cycle) for cycle in range(prop.cycle + 1)] for port in circuit.inputs}
        found = circuit.output("run", prop.port, prop.cycle)
        values = solve(
            prop.script(circuit, self.specification), [*chain(*names.values()), found, prop.expected], timeout=timeout
        ).values
        if not values:
            return None
        inputs = {port: [values[name] for name in column] for port, column in names.items()}
        simulated = replay(circuit, inputs)[prop.port][prop.cycle]
        golden = block.expect(self.value, inputs, prop.port)[prop.cycle]
        return Counterexample(
            prop.text, prop.port, inputs, prop.decisive, values[prop.expected], values[found], simulated, golden
        )

    def _as_expected(self, result, counterexample):
        if not self.subject or counterexample is None:
            return result == "proven" and (not self.subject or self.harmless)
        # The golden model must agree with the property or block that is correct, and the simulator with the solver.
        right = counterexample.found if self.specification != specification() else counterexample.expected
        return counterexample.simulated == counterexample.found and counterexample.golden == right


def _value_text(value):
    if isinstance(value, tuple):
        return f"{value[0]}, canonical b" if value[1] else str(value[0])
    return str(value)


def proofs(block, values=None):
    """Returns the jobs that prove a block, for `values` of its parameter. Default: all values."""
    return [ProofJob(block, value) for value in BLOCKS[block].values if values is None or value in values]


def _mutations(block, value, count):
    """Returns `count` Yosys commands that each invert one bit of one cell in a block's netlist. The commands are always the same
    for the same netlist."""
    script = (
        "read_rtlil design.il\nhierarchy -check -top dut\nproc\nflatten\nopt_clean\n"
        f"mutate -list {count} -mode inv -seed 1 -o mutations.txt "
        "t:* t:$dff t:$dffe t:$sdff t:$sdffe t:$adff %u %u %u %u %d\n"
    )
    design = component_to_rtlil(BLOCKS[block].make(value), name="dut")
    return run_yosys(script, {"design.il": design}, "mutations.txt", timeout=120).strip().splitlines()


def negative_controls(mutations=3):
    """Returns jobs with one inserted fault each, all of which must be refuted. `mutations` is the number of inverted bits per
    block."""
    multiplier, adder, cell = 2, (3, True), 3
    jobs = [
        ProofJob("multiplier", multiplier, "specification: subnormals are kept", specification(flush=False)),
        ProofJob("adder", adder, "specification: subnormals are kept", specification(flush=False)),
        ProofJob("adder", adder, "specification: rounds toward zero", specification(rounding="RTZ")),
        ProofJob("cell", cell, "specification: rounds toward zero", specification(rounding="RTZ")),
        ProofJob("multiplier", multiplier, "block: flushes the least exponent", mutate=FlushesLeastNormal),
        ProofJob("adder", adder, "block: flushes the least exponent", mutate=FlushesLeastNormal),
        ProofJob("adder", adder, "block: no sticky bit", mutate=DropsSticky),
        ProofJob("cell", cell, "block: takes the next weight a cycle late", mutate=SwitchesLate),
        ProofJob("cell", cell, "block: a mark switches too", mutate=MarkSwitches),
        ProofJob("comparator", True, "block: of equal negative numbers each is larger", mutate=NotStrict),
        ProofJob("select lane", 1, "block: keeps lanes with a NaN", mutate=KeepsNaN),
    ]
    mutated = ("multiplier", multiplier), ("adder", adder), ("cell", cell), ("activation lane", True), ("select lane", 1)
    for block, value in mutated:
        for change in _mutations(block, value, mutations):
            words = dict(zip(*[iter(change.split()[1:])] * 2))
            subject = f"netlist: {words['-mode']} at `{words['-cell']}.{words['-port']}[{words['-portbit']}]`"
            jobs.append(ProofJob(block, value, subject, changes=change, harmless=True))
    return jobs

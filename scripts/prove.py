"""Proves the arithmetic equal to SMT-LIB's theory of floating point: `python -m amaranth_tpu.scripts.prove`, some minutes.

`python -m amaranth_tpu.scripts.prove multiplier adder`     these blocks in all their pipelinings
`python -m amaranth_tpu.scripts.prove cell --stages 3,5`    some of them
`python -m amaranth_tpu.scripts.prove controls`             wrong specifications and wrong blocks, which must not be provable
`python -m amaranth_tpu.scripts.prove --write`              everything, and its tables into the datasheet

What a claim says and why the claims together say all is in `sim/proofs/properties.py`.
"""

import json
import struct
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.arithmetic.multiplier import Multiplier
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.yosys import YosysError, run_yosys
from amaranth_tpu.hw.verilog.export import component_to_rtlil
from amaranth_tpu.sim.proofs.mutants import DropsSticky, FlushesLeastNormal, MarkSwitches, SwitchesLate
from amaranth_tpu.sim.proofs.properties import BLOCKS, specification
from amaranth_tpu.sim.proofs.replay import replay
from amaranth_tpu.sim.proofs.smt import Circuit, SolverError, solve

from .datasheet import PROOFS
from .show.markdown import markdown_table, replace_section
from .show.terminal import progress_bar

__all__ = ["Counterexample", "Proof", "ProofError", "Job", "proofs", "controls", "run"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)


class ProofError(RuntimeError):
    """Something right was not proven, or something wrong was not refuted."""


@dataclass(frozen=True)
class Counterexample:
    """Inputs for which a claim does not hold.

    Parameters
    ----------
    inputs : dict
        Columns, from the first cycle to the one in which `port` is looked at.
    shown : tuple
        `(port, cycle)` of those inputs that the claim names.
    expected, found : int
        What the claim asks of `port`, and what the solver says it is.
    simulated, golden : int or None
        What it is in Icarus, and what numpy says it should be.
    """

    claim: str
    port: str
    inputs: dict
    shown: tuple
    expected: int
    found: int
    simulated: int | None
    golden: int | None


@dataclass(frozen=True)
class Proof:
    """How a job went: `result` is `proven`, `refuted` or `unknown`."""

    block: str
    value: str
    subject: str
    cycles: int
    claims: int
    result: str
    as_expected: bool
    seconds: float
    counterexample: Counterexample | None


@dataclass(frozen=True)
class Job:
    """All claims about one block: to be proven, or, of a `subject` that is wrong, to be refuted.

    Parameters
    ----------
    subject : str
        What is wrong, if something is.
    specification : str
        SMT-LIB, right unless it is the subject.
    spoil : callable
        A right component to a wrong one.
    changes : str
        Yosys commands that make the netlist wrong.
    harmless : bool
        Whether what is wrong may turn out not to matter: proven is as good as refuted then.
    """

    block: str
    value: object
    subject: str = ""
    specification: str = field(default_factory=specification)
    spoil: type | None = None
    changes: str = ""
    harmless: bool = False

    def run(self, timeout):
        """Proves claim after claim, until one does not hold."""
        block = BLOCKS[self.block]
        component = block.make(self.value)
        circuit = Circuit(self.spoil(component) if self.spoil else component, self.changes)
        claims = block.claims(self.value, 0)
        seconds, result, counterexample = 0.0, "proven", None
        multiplier = None
        if any(claim.factors for claim in claims):
            multiplier, seconds = self._multiplier(timeout)
        for index, claim in enumerate(claims):
            answer = solve(claim.script(circuit, self.specification, multiplier), timeout=timeout)
            seconds += answer.seconds
            if answer.result != "unsat":
                result = "refuted" if answer.result == "sat" else "unknown"
                counterexample = self._confirm(circuit, index, timeout) if answer.result == "sat" else None
                break
        return Proof(self.block, _value_text(self.value), self.subject, max(claim.cycle for claim in claims), len(claims),
                     result, self._as_expected(result, counterexample), seconds, counterexample)

    def _multiplier(self, timeout):
        """The circuit of a multiplier, if it is proven to fulfil the specification, else None; and seconds."""
        circuit = Circuit(Multiplier(lead=0), name="multiplier")
        claim, = BLOCKS["multiplier"].claims(0, 0)
        answer = solve(claim.script(circuit, self.specification), timeout=timeout)
        return (circuit if answer.result == "unsat" else None), answer.seconds

    def _confirm(self, circuit, index, timeout):
        """A counterexample to a claim that begins in a state which inputs lead to, simulated; None if there is none."""
        block = BLOCKS[self.block]
        claim = block.claims(self.value, len(block.start.get("rst", ())))[index].after(block.start, circuit.inputs)
        names = {port: [circuit.input("run", port, cycle) for cycle in range(claim.cycle + 1)] for port in circuit.inputs}
        found = circuit.output("run", claim.port, claim.cycle)
        values = solve(claim.script(circuit, self.specification), [*chain(*names.values()), found, claim.expected],
                       timeout=timeout).values
        if not values:
            return None
        inputs = {port: [values[name] for name in column] for port, column in names.items()}
        simulated = replay(circuit, inputs)[claim.port][claim.cycle]
        golden = block.expect(self.value, inputs, claim.port)[claim.cycle]
        return Counterexample(claim.text, claim.port, inputs, claim.decisive, values[claim.expected], values[found], simulated,
                              golden)

    def _as_expected(self, result, counterexample):
        if not self.subject or counterexample is None:
            return result == "proven" and (not self.subject or self.harmless)
        # The golden model is on the side of whichever of claim and block is right, and the simulator does what the solver said.
        right = counterexample.found if self.specification != specification() else counterexample.expected
        return counterexample.simulated == counterexample.found and counterexample.golden == right


def _value_text(value):
    if isinstance(value, tuple):
        return f"{value[0]}, canonical b" if value[1] else str(value[0])
    return str(value)


def proofs(block, values=None):
    """Jobs that prove a block."""
    return [Job(block, value) for value in BLOCKS[block].values if values is None or value in values]


def _mutations(block, value, count):
    """Yosys commands, each of which inverts one bit of one cell of a block's netlist; the same for the same netlist."""
    script = ("read_rtlil design.il\nhierarchy -check -top dut\nproc\nflatten\nopt_clean\n"
              f"mutate -list {count} -mode inv -seed 1 -o mutations.txt "
              "t:* t:$dff t:$dffe t:$sdff t:$sdffe t:$adff %u %u %u %u %d\n")
    design = component_to_rtlil(BLOCKS[block].make(value), name="dut")
    return run_yosys(script, {"design.il": design}, "mutations.txt", timeout=120).strip().splitlines()


def controls(mutations=3):
    """Jobs that must not succeed."""
    multiplier, adder, cell = 2, (3, True), 3
    jobs = [
        Job("multiplier", multiplier, "specification: subnormals are kept", specification(flush=False)),
        Job("adder", adder, "specification: subnormals are kept", specification(flush=False)),
        Job("adder", adder, "specification: rounds toward zero", specification(rounding="RTZ")),
        Job("cell", cell, "specification: rounds toward zero", specification(rounding="RTZ")),
        Job("multiplier", multiplier, "block: flushes the least exponent", spoil=FlushesLeastNormal),
        Job("adder", adder, "block: flushes the least exponent", spoil=FlushesLeastNormal),
        Job("adder", adder, "block: no sticky bit", spoil=DropsSticky),
        Job("cell", cell, "block: takes the next weight a cycle late", spoil=SwitchesLate),
        Job("cell", cell, "block: a mark switches too", spoil=MarkSwitches),
    ]
    for block, value in (("multiplier", multiplier), ("adder", adder), ("cell", cell)):
        for change in _mutations(block, value, mutations):
            words = dict(zip(*[iter(change.split()[1:])] * 2))
            subject = f"netlist: {words['-mode']} at `{words['-cell']}.{words['-port']}[{words['-portbit']}]`"
            jobs.append(Job(block, value, subject, changes=change, harmless=True))
    return jobs


# --- What is shown ------------------------------------------------------------------------------------------------

def _number(bits, port):
    """Bits of a port, and the number that they are; ports of sums have 32, of flags one."""
    if bits is None:
        return "-"
    if port.startswith(("mark", "switch", "rst")):
        return str(bits)
    width = 16 if port in ("x", "w", "x_i", "w_i", "x_o", "w_o") else 32
    value, = struct.unpack(">f", (bits << 32 - width).to_bytes(4))
    return f"0x{bits:0{width // 4}X} ({value:.9g})"


def _proofs_table(results):
    rows = [[r.block, f"{BLOCKS[r.block].parameter} {r.value}", r.claims, r.cycles, r.result, f"{r.seconds:.1f}"]
            for r in results]
    return markdown_table(["block", "pipelining", "claims", "cycles unrolled", "result", "CPU seconds"], rows)


def _controls_table(results):
    rows = []
    for r in results:
        row = [r.subject, f"{r.block}, {BLOCKS[r.block].parameter} {r.value}", r.result]
        if example := r.counterexample:
            shown = [f"{port}({cycle}) = {_number(example.inputs[port][cycle], port)}" for port, cycle in example.shown]
            row += ["<br>".join(shown) or example.claim]
            row += [_number(bits, example.port) for bits in (example.expected, example.found, example.golden)]
        else:
            row += ["-"] * 4
        rows.append([*row, "yes" if r.as_expected and r.counterexample else "-"])
    return markdown_table(["what is wrong", "where", "result", "counterexample", "the claim asks", "the block gives", "numpy",
                           "replayed"], rows)


def _chosen(text, values, option):
    """The values of a list like `1,3` that an option gives; None for all."""
    if text is None:
        return None
    try:
        chosen = {int(word) for word in text.split(",")}
    except ValueError:
        chosen = {None}
    known = {value[0] if isinstance(value, tuple) else value for value in values}
    if not chosen <= known:
        raise typer.BadParameter(f"{option} takes numbers from {min(known)} to {max(known)}, separated by commas, not {text!r}")
    return [value for value in values if (value[0] if isinstance(value, tuple) else value) in chosen]


def run(jobs, timeout, at_a_time):
    """Results of jobs, in their order."""
    with progress_bar(console, "proving") as advance, ThreadPoolExecutor(at_a_time) as pool:
        futures = [pool.submit(job.run, timeout) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                advance(done, len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


@app.command(help=__doc__)
def prove(
    parts: Annotated[list[str], typer.Argument(help="Of: multiplier, adder, cell, controls; all if none is given.")] = None,
    leads: Annotated[str, typer.Option(help="Multipliers, by their lead, like 0,3.")] = None,
    latencies: Annotated[str, typer.Option(help="Adders, by their latency.")] = None,
    stages: Annotated[str, typer.Option(help="Cells, by their stages.")] = None,
    mutations: Annotated[int, typer.Option(min=0, help="Changes of the netlist of each block.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each question to the solver.")] = 900,
    jobs: Annotated[int, typer.Option(min=1, help="Solvers at a time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the tables into the datasheet; of everything only.")] = False,
):
    """Proves what is chosen and shows it."""
    known = [*BLOCKS, "controls"]
    if unknown := [part for part in parts or () if part not in known]:
        raise typer.BadParameter(f"no part {unknown[0]!r}; choose of: {', '.join(known)}")
    chosen = {block: _chosen(text, BLOCKS[block].values, option) for block, text, option in (
        ("multiplier", leads, "--leads"), ("adder", latencies, "--latencies"), ("cell", stages, "--stages"))}
    if write and (parts or any(values is not None for values in chosen.values())):
        raise typer.BadParameter("--write takes no choice: the datasheet shows everything")
    parts = parts or known
    todo = [job for block in BLOCKS if block in parts for job in proofs(block, chosen[block])]
    todo += controls(mutations) if "controls" in parts else []
    results = run(todo, timeout, jobs)

    proven, refuted = [r for r in results if not r.subject], [r for r in results if r.subject]
    tables = {"proofs": _proofs_table(proven), "controls": _controls_table(refuted)}
    if as_json:
        print(json.dumps({"proofs": [asdict(r) for r in proven], "controls": [asdict(r) for r in refuted]}))
    else:
        print("\n\n".join(tables[name] for name, rows in (("proofs", proven), ("controls", refuted)) if rows))
    failed = [r for r in results if not r.as_expected]
    if failed:
        raise ProofError("; ".join(f"{r.block} {r.value}{', ' if r.subject else ''}{r.subject}: {r.result}" for r in failed))
    if write:
        for name, table in tables.items():
            replace_section(PROOFS, name, table)


def main():
    """Runs the command; an expected error is one line."""
    try:
        sys.exit(app(standalone_mode=False))
    except (SolverError, YosysError, ToolError, ProofError, OSError) as error:
        message, status = str(error), 1
    except typer.BadParameter.__base__ as error:  # what typer raises for a wrong command line
        message, status = error.format_message(), 2
    except (typer.Abort, KeyboardInterrupt):
        message, status = "interrupted", 130
    console.print(f"error: {message}", soft_wrap=True, highlight=False, markup=False)
    sys.exit(status)


if __name__ == "__main__":
    main()

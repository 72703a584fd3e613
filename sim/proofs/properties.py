"""Properties of the arithmetic, in SMT-LIB's theory of floating point, and the golden model's results for the same inputs.

The specification is `acc' = ftz(rne(acc + ftz(rne(x * w))))`, where operands are flushed too, and every NaN is 0x7FC00000. A
bfloat16 is specified as the upper half of a binary32, since Bitwuzla's support of bfloat16 is experimental. A run of a circuit is
its behaviour over some cycles, from arbitrary initial registers.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from amaranth_tpu.hw.arithmetic.adder import LATENCIES, Adder
from amaranth_tpu.hw.arithmetic.multiplier import LEADS, Multiplier
from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages

from ..golden import arithmetic as golden

__all__ = ["ARITHMETIC", "ProvenBlock", "Property", "specification"]

_SPECIFICATION = """
(define-fun ftz ((f Float32)) Float32 {ftz})
(define-fun number ((bits (_ BitVec 32))) Float32 (ftz ((_ to_fp 8 24) bits)))
(define-fun product ((x (_ BitVec 16)) (w (_ BitVec 16))) Float32
  (ftz (fp.mul {rounding} (number (concat x #x0000)) (number (concat w #x0000)))))
(define-fun sum ((a Float32) (b Float32)) Float32 (ftz (fp.add {rounding} a b)))
(define-fun same ((bits (_ BitVec 32)) (f Float32)) Bool
  (ite (fp.isNaN f) (= bits #x7fc00000) (= ((_ to_fp 8 24) bits) f)))
"""
_FTZ = "(ite (fp.isSubnormal f) (ite (fp.isNegative f) (_ -zero 8 24) (_ +zero 8 24)) f)"


def specification(rounding="RNE", flush=True):
    """Returns the definitions of four SMT-LIB functions: `number` of a bit vector, `product` of two bfloat16, `sum` of numbers,
    and the equality `same`.

    Only the default arguments are correct. `rounding` is a rounding mode of SMT-LIB. If `flush` is False, subnormals are kept.
    """
    return _SPECIFICATION.format(rounding=rounding, ftz=_FTZ if flush else "f")


@dataclass(frozen=True)
class Property:
    """The statement that output `port` equals `expected` in cycle `cycle` of a run, for all initial registers and all inputs."""

    text: str  # description of the property for reports
    port: str
    cycle: int
    #: SMT-LIB term: a number if `number` is True, else a bit vector. The term `run.x.0` is input `x` in cycle 0 of the run.
    expected: str
    number: bool = False
    given: dict = field(default_factory=dict)  # inputs with given values: maps `(port, cycle)` to an SMT-LIB term
    assumption: str = "true"  # SMT-LIB formula that is assumed to hold
    other: tuple | None = None  # `(cycles, given)` of a second run, named `other`, which starts with the same registers
    factors: tuple | None = None  # two terms whose `product` occurs in `expected`

    @property
    def decisive(self):
        """Returns `(port, cycle)` of the inputs that occur in the property. It is empty for a property of two runs."""
        names = dict.fromkeys(re.findall(r"\brun\.(\w+)\.(\d+)", self.expected))
        return tuple((port, int(cycle)) for port, cycle in names)

    def after(self, start, widths):
        """Returns the same property for runs that begin with given inputs. `start` has the inputs by name, one value per cycle;
        `widths` has their widths."""
        given = {
            (port, cycle): f"(_ bv{bits} {widths[port]})" for port, column in start.items() for cycle, bits in enumerate(column)
        }
        other = self.other and (self.other[0], {**given, **self.other[1]})
        return replace(self, given={**given, **self.given}, other=other)

    def script(self, circuit, specification, multiplier=None):
        """Returns SMT-LIB text that is satisfiable only if the property is false.

        `multiplier` is the circuit of a multiplier without registers. It must have been proven to compute the function `product`.
        The text uses it as a lemma: the property does not change, but the solver needs much less work.
        """
        parts = [circuit.script, specification]
        if self.other:
            parts.append(circuit.unroll("other", *self.other))
        parts += [circuit.unroll("run", self.cycle, self.given), f"(assert {self.assumption})"]
        if multiplier and self.factors:
            x, w = self.factors
            parts += [
                multiplier.script,
                multiplier.unroll("known", 0, {("x", 0): x, ("w", 0): w}),
                f"(assert (same {multiplier.output('known', 'o', 0)} (product {x} {w})))",
            ]
        found = circuit.output("run", self.port, self.cycle)
        parts.append(f"(assert (not ({'same' if self.number else '='} {found} {self.expected})))")
        return "\n".join(parts)


@dataclass(frozen=True)
class ProvenBlock:
    """A block with formal proofs, for all values of its parameter. The parameter is usually the block's latency."""

    #: name, parameter: Names of the block and of its parameter.
    name: str
    parameter: str
    values: tuple  # Sequence. Values of the parameter.
    make: Callable  # Callable. Maps a value of the parameter to a component.
    properties: Callable  # Callable. Maps `(value, first)` to a list of properties. `first` is the first cycle of their inputs.
    #: Callable. Maps `(value, columns, port)` to the golden model's values of an output: one int per cycle, or None if the inputs
    #: do not determine the value.
    expect: Callable
    #: Inputs by name, one value per cycle. After these cycles, the outputs depend only on the inputs, not on the initial
    #: registers.
    start: dict = field(default_factory=dict)


# --- Multiplier and adder -----------------------------------------------------------------------------------------


def _multiplier_properties(lead, first):
    return [Property("o is the product", "o", first + lead, f"(product run.x.{first} run.w.{first})", number=True)]


def _multiplier_model(lead, columns, port):
    return [None] * lead + [int(golden.multiply(x, w)) for x, w in zip(columns["x"], columns["w"])]


def _adder_properties(pipelining, first):
    latency, canonical = pipelining
    canonical_b = f"(=> (fp.isNaN ((_ to_fp 8 24) run.b.{first})) (= run.b.{first} #x7fc00000))"
    return [
        Property(
            "o is the sum",
            "o",
            first + latency,
            f"(sum (number run.a.{first}) (number run.b.{first}))",
            number=True,
            assumption=canonical_b if canonical else "true",
        )
    ]


def _adder_model(pipelining, columns, port):
    return [None] * pipelining[0] + [int(golden.add(a, b)) for a, b in zip(columns["a"], columns["b"])]


# --- Cell ---------------------------------------------------------------------------------------------------------


def _cell_properties(stages, first):
    # An operand x uses the last weight that was marked before the last switch before x. The first property states this for a
    # mark, a switch and an x in consecutive cycles. The next two properties state that a cycle without a switch keeps the active
    # weight, and that a cycle without a mark keeps the next weight. By induction over inserted cycles, the statement holds for
    # all distances.
    lead, _ = split_stages(stages)
    inputs = ("x_i", "w_i", "mark_i", "switch_i", "sum_i", "rst")
    x = first + 2
    last = x + stages
    factors = f"run.x_i.{x}", f"run.w_i.{first}"

    def after_one_more(cycles):
        """Returns the inputs of the run, as given inputs of the other run. They are delayed by one cycle, starting at cycle
        `first`."""
        return {(port, cycle + 1): f"other.{port}.{cycle}" for port in inputs for cycle in range(first, cycles + 1)}

    def unless_reset(port, *cycles):
        return "(bvand " + " ".join([f"run.{port}.{first}", *(f"(bvnot run.rst.{first + cycle})" for cycle in cycles)]) + ")"

    return [
        Property(
            "sum_o is sum_i plus x_i times the marked weight",
            "sum_o",
            last,
            f"(sum (number run.sum_i.{x + lead}) (product {' '.join(factors)}))",
            number=True,
            factors=factors,
            given={("mark_i", first): "#b1", ("switch_i", first + 1): "#b1"},
        ),
        Property(
            "a cycle without a switch keeps the active weight",
            "sum_o",
            last - 1,
            f"(|dut_n sum_o| other.{last - 2})",
            given={("switch_i", first): "#b0", **after_one_more(last - 2)},
            other=(last - 2, {}),
        ),
        Property(
            "a cycle without a mark keeps the next weight",
            "sum_o",
            last,
            f"(|dut_n sum_o| other.{last - 1})",
            given={("mark_i", first): "#b0", **after_one_more(last - 1)},
            other=(last - 1, {("switch_i", first): "#b1"}),
        ),
        Property("x_o is x_i", "x_o", first + 1, f"run.x_i.{first}"),
        Property("w_o is w_i", "w_o", first + 1, f"run.w_i.{first}"),
        Property("switch_o is switch_i", "switch_o", first + 1, unless_reset("switch_i", 0)),
        Property("mark_o is mark_i", "mark_o", first + 2, unless_reset("mark_i", 0, 1)),
    ]


def _cell_model(stages, columns, port):
    lead, _ = split_stages(stages)
    if port in ("x_o", "w_o"):
        return [None, *columns[port.replace("_o", "_i")]]
    kept = [1 - rst for rst in columns["rst"]]
    if port == "switch_o":
        return [None, *(a & b for a, b in zip(columns["switch_i"], kept))]
    if port == "mark_o":
        return [None, None, *(a & b & c for a, b, c in zip(columns["mark_i"], kept, kept[1:]))]
    shadow = active = None
    sums = [None] * stages
    for x, w, mark, switch, total in zip(
        columns["x_i"], columns["w_i"], columns["mark_i"], columns["switch_i"], columns["sum_i"][lead:]
    ):
        sums.append(None if active is None else int(golden.multiply_accumulate(total, x, active)))
        active, shadow = shadow if switch else active, w if mark else shadow
    return sums


#: Inputs that mark two different weights and switch to the first.
_CELL_START = {
    "w_i": [0x3FC0, 0, 0xC040],
    "mark_i": [1, 0, 1],
    "switch_i": [0, 1, 0],
    "x_i": [0] * 3,
    "sum_i": [0] * 3,
    "rst": [0] * 3,
}

#: Blocks by name. The adder's parameter is (latency, True if its second operand has only the NaN 0x7FC00000).
ARITHMETIC = {
    block.name: block
    for block in (
        ProvenBlock(
            "multiplier", "lead", tuple(LEADS), lambda lead: Multiplier(lead=lead), _multiplier_properties, _multiplier_model
        ),
        ProvenBlock(
            "adder",
            "latency",
            tuple((latency, canonical) for latency in LATENCIES for canonical in (False, True)),
            lambda value: Adder(latency=value[0], canonical_b=value[1]),
            _adder_properties,
            _adder_model,
        ),
        ProvenBlock(
            "cell", "stages", tuple(STAGES), lambda stages: Cell(stages=stages), _cell_properties, _cell_model, _CELL_START
        ),
    )
}

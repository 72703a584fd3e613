"""Properties of the activation unit's lanes, for all inputs. The order and the sign of numbers are defined by SMT-LIB's
binary32."""

from amaranth_tpu.hw.activation.activation_lane import ActivationLane
from amaranth_tpu.hw.activation.index_lane import IndexLane
from amaranth_tpu.hw.activation.select_lane import SelectLane
from amaranth_tpu.hw.arithmetic.comparator import Comparator

from ..golden import arithmetic as golden
from .properties import Property, ProvenBlock

__all__ = ["LANES"]


def _float(bits):
    return f"((_ to_fp 8 24) {bits})"


def _is_sum(bits):
    """Returns the condition, in SMT-LIB, that a bit vector is a possible sum of the cells: not subnormal, and 0x7FC00000 if it is
    NaN."""
    return f"(and (not (fp.isSubnormal {_float(bits)})) (=> (fp.isNaN {_float(bits)}) (= {bits} #x7fc00000)))"


def _bit(condition):
    return f"(ite {condition} #b1 #b0)"


def _is_set(port, cycle=0):
    return f"(= run.{port}.{cycle} #b1)"


def _above_zero(bits):
    """Returns the condition, in SMT-LIB, that a binary32 bit vector is greater than zero. It is false for NaN."""
    return f"(fp.gt {_float(bits)} (_ +zero 8 24))"


# --- Comparator ---------------------------------------------------------------------------------------------------


def _comparator_properties(strict, first):
    a, b = (_float(f"run.{port}.{first}") for port in "ab")
    larger = (
        f"(and (not (fp.isNaN {b})) (or (fp.isNaN {a}) (fp.gt {a} {b}) "
        f"(and (fp.isZero {a}) (fp.isZero {b}) (fp.isPositive {a}) (fp.isNegative {b}))))"
    )
    canonical = f"(and {_is_sum(f'run.a.{first}')} {_is_sum(f'run.b.{first}')})"
    unequal = "true" if strict else f"(distinct run.a.{first} run.b.{first})"
    return [Property("o is whether a is larger", "o", first, _bit(larger), assumption=f"(and {canonical} {unequal})")]


def _order(bits):
    return -(bits & 0x7FFFFFFF) - 1 if bits >> 31 else bits


def _comparator_model(strict, columns, port):
    return [int(_order(a) > _order(b)) for a, b in zip(columns["a"], columns["b"])]


# --- Function and rounding ----------------------------------------------------------------------------------------


def _lane_properties(halves, first):
    value = f"run.value.{first}"
    stays = f"(and {_is_set('keep', first)} (not (and {_is_set('relu', first)} (fp.isNegative {_float(value)}))))"
    result = f"(ite {stays} {value} #x00000000)"
    # Add half a unit in the last place. If the last place is even, add one bit less, so that ties go to even.
    up = f"(bvadd {result} #x00007fff ((_ zero_extend 31) ((_ extract 16 16) {result})))"
    rounded = f"((_ extract 31 16) (ite {_is_set('cut', first)} {result} {up}))"
    assumption = _is_sum(value)
    if not halves:
        return [
            Property("rounded is the result, rounded or cut", "rounded", first, rounded, assumption=assumption),
            Property("binary32 is the result", "binary32", first, result, assumption=assumption),
        ]
    rounded = f"(ite {_is_set('low', first)} ((_ extract 15 0) {result}) {rounded})"
    rounded = f"(ite {_is_set('wide', first)} #x0000 {rounded})"
    only_cut = f"(and {assumption} (=> {_is_set('low', first)} {_is_set('cut', first)}))"
    return [
        Property("rounded is the result, rounded or one of its halves", "rounded", first, rounded, assumption=only_cut),
        Property("stays is whether the sum is the result", "stays", first, _bit(stays), assumption=assumption),
    ]


def _lane_model(halves, columns, port):
    found = []
    for cycle, value in enumerate(columns["value"]):
        now = {name: column[cycle] for name, column in columns.items()}
        stays = now["keep"] and not (now["relu"] and value >> 31)
        result = value if stays else 0
        rounded = result >> 16 if now["cut"] else int(golden.to_bfloat16(result))
        if halves and now["low"]:
            rounded = result & 0xFFFF
        found.append({"rounded": 0 if halves and now["wide"] else rounded, "binary32": result, "stays": int(stays)}[port])
    return found


# --- SELECT and INDEX ---------------------------------------------------------------------------------------------


def _select_properties(latency, first):
    x, number = f"run.operand.{first}", f"run.number.{first}"
    equal = f"(= ((_ extract 7 0) {x}) {number})"
    normal = _float(f"(concat {x} #x0000)")
    positive = f"(and {_above_zero(f'(concat {x} #x0000)')} (not (fp.isSubnormal {normal})))"
    kept = _bit(f"(ite {_is_set('equal', first)} {equal} {positive})")
    before = _bit(f"(|dut_n keep| run.{first})")
    take, keep_all = ("take", first), ("keep_all", first)
    return [
        Property("keep is whether the operand fulfils the condition", "keep", first + latency, kept, given={take: "#b1"}),
        Property("with keep_all it is 1", "keep", first + 1, "#b1", given={take: "#b0", keep_all: "#b1"}),
        Property("else keep stays", "keep", first + 1, before, given={take: "#b0", keep_all: "#b0"}),
    ]


def _select_model(latency, columns, port):
    keep, found = None, []
    for take, x, equal, number, keep_all in zip(*(columns[n] for n in ("take", "operand", "equal", "number", "keep_all"))):
        found.append(keep)
        if take:
            keep = int(x & 0xFF == number if equal else 0x0080 <= x <= 0x7F80)
        elif keep_all:
            keep = 1
    return [*found, keep]


def _index_properties(latency, first):
    value, number = f"run.value.{first}", f"run.number.{first}"
    nothing = f"(and {_is_set('relu', first)} (not (or (fp.isNaN {_float(value)}) {_above_zero(value)})))"
    index = f"(ite {nothing} #x00ff {number})"
    taken = {("take", first): "#b1"}
    before = f"(|dut_n o| run.{first})"
    return [
        Property("o is the row's number", "o", first + latency, index, given=taken, assumption=_is_sum(value)),
        Property("else o stays", "o", first + 1, before, given={("take", first): "#b0"}),
    ]


def _index_model(latency, columns, port):
    index, found = None, []
    for take, number, value, relu in zip(*(columns[name] for name in ("take", "number", "value", "relu"))):
        found.append(index)
        if take:
            index = 255 if relu and not int(golden.relu(value)) else number
    return [*found, index]


#: Blocks by name.
LANES = {
    block.name: block
    for block in (
        ProvenBlock(
            "comparator",
            "strict",
            (False, True),
            lambda strict: Comparator(strict=strict),
            _comparator_properties,
            _comparator_model,
        ),
        ProvenBlock(
            "activation lane",
            "halves",
            (False, True),
            lambda halves: ActivationLane(cuts=True, halves=halves),
            _lane_properties,
            _lane_model,
        ),
        ProvenBlock("select lane", "latency", (1,), lambda latency: SelectLane(), _select_properties, _select_model),
        ProvenBlock("index lane", "latency", (1,), lambda latency: IndexLane(), _index_properties, _index_model),
    )
}

"""Tests of the activation functions, covering errors for all bfloat16 and for binary32 in between, known values, and functions
without a table."""

import math
from dataclasses import replace

import numpy as np
import pytest

from activation_functions import TABLES, gelu_beside_root
from amaranth_tpu.hw.spec.isa import TABLE_ENTRIES
from amaranth_tpu.sim.functions.functions import NONE, RELU, Function
from amaranth_tpu.sim.golden import function_tables
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.function_tables import apply, errors, is_steady, table_of
from amaranth_tpu.sim.golden.table_lookup import Table, lookup
from seeds import seed
from suites import all_but

#: All bfloat16 values as binary32 bits, without subnormals, which the cells flush.
EVERY = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
EVERY &= np.where(EVERY & 0x7F800000, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))

#: Functions whose table holds a neighbour of the correctly rounded value at some bfloat16.
NEXT = ("sigmoid", "silu", "mish", "selu", "softplus", "softsign", "exp")

#: Largest error for binary32 below 4, 16, 64 and 2^127 in units in the last place, where it exceeds 0.7.
BETWEEN = {
    "sigmoid": (1, 0.7, 3, 14),
    "gelu": (0.7, 14, 0.7, 0.7),
    "gelu_tanh": (0.7, 45, 0.7, 0.7),
    "silu": (1.1, 0.7, 3, 14),
    "mish": (1.1, 0.7, 3, 14),
    "softplus": (0.7, 0.7, 3, 14),
    "softsign": (1.6, 0.7, 0.7, 1.1),
    "exp": (1.1, 0.7, 3, 14),
    "sinh": (0.7, 0.7, 3, 14),
    "cosh": (0.7, 0.7, 3, 14),
}


#: A few functions, with tails, an edge, straight lines, and ends that are kept.
FEW = [
    *map(Function, ("silu", "exp", "gelu")),
    Function("elu", (2,)),
    Function("clip", (-3,)),
    Function("hard_sigmoid", (1 / 6, 0.5)),
]


@pytest.mark.parametrize("function", all_but(FEW, TABLES), ids=str)
def test_error_for_all_bfloat16(function):
    """For all 65,536 bfloat16 inputs, the table holds the correctly rounded float64 value, or for functions in `NEXT` its
    neighbour."""
    largest = errors(function, EVERY, lookup(EVERY, table_of(function))).max()
    print(f"{function}: {largest:.4f} units in the last place")
    assert largest <= (1 if function.name in NEXT else 0.5)


@pytest.mark.parametrize("function", all_but([Function("silu"), Function("clip", (-3,))], TABLES), ids=str)
def test_error_between_bfloat16(function):
    """For random binary32 between bfloat16 values, where the function is not near 0, the table's error is below the documented
    units in the last place."""
    rng = np.random.default_rng(seed())
    for (low, high), bound in zip(
        ((2.0**-20, 4), (4, 16), (16, 64), (64, 2.0**127)), BETWEEN.get(function.name, (0.7, 0.7, 0.7, 0.7))
    ):
        sizes = np.exp2(rng.uniform(np.log2(low), np.log2(high), 100_000)), rng.uniform(low, min(high, 128), 100_000)
        sums = np.concatenate([*sizes, *np.negative(sizes)]).astype(np.float32).view(np.uint32)
        sums = sums[is_steady(function, sums)]
        largest = errors(function, sums, lookup(sums, table_of(function))).max(initial=0)
        print(f"{function} of {low} to {high}: {largest:.4f} units in the last place")
        assert largest <= bound


@pytest.mark.parametrize("function", TABLES, ids=str)
def test_apply(function):
    """`apply` returns a bfloat16 for each sum and ignores the sum's last four bits. It returns NaN exactly for NaN."""
    sums = EVERY.view(np.float32)
    found = apply(function, sums)
    assert (round_bfloat16(found).astype(np.float32).view(np.uint32) == found.view(np.uint32)).all()
    nan = np.isnan(sums) | np.isnan(function.exact(np.where(np.isnan(sums), 0, sums).astype(float)))
    assert np.isnan(found[nan]).all() and not np.isnan(found[~nan]).any()
    finite = np.isfinite(sums) & (sums != 0) & ~nan
    near = (sums.view(np.uint32) | np.uint32(15)).view(np.float32)
    assert (apply(function, near)[finite] == found[finite]).all()


def test_by_hand():
    """Functions return known values from mathematical tables."""
    for function, x, value in (
        (Function("sigmoid"), 0, 0.5),
        (Function("sigmoid"), math.inf, 1),
        (Function("sigmoid"), -math.inf, 0),
        (Function("sigmoid"), 1, 0.7310585786),
        (Function("tanh"), 1, 0.761594156),
        (Function("tanh"), -math.inf, -1),
        (Function("tanh"), 2.0**-100, 2.0**-100),
        (Function("gelu"), 1, 0.8413447461),
        (Function("gelu"), -1, -0.1586552539),
        (Function("gelu"), math.inf, math.inf),
        (Function("gelu"), -math.inf, 0),
        (Function("gelu_tanh"), 1, 0.8411919906),
        (Function("leaky_relu"), -math.inf, -math.inf),
        (Function("leaky_relu"), -2, -0.02),
        (Function("leaky_relu"), 3, 3),
        (Function("clip", (0, 6)), 7, 6),
        (Function("clip", (0, 6)), -7, 0),
        (Function("clip", (0, 6)), 2.0**-126, 2.0**-126),
        (Function("elu"), -math.inf, -1),
        (Function("elu"), math.inf, math.inf),
        (Function("elu", (2,)), -0.0, 0),
        (Function("celu", (2,)), -2, -1.264241118),
        (Function("celu"), 3, 3),
        (Function("softplus"), 0, 0.6931471806),
        (Function("softplus"), 300, 300),
        (Function("exp"), 0, 1),
        (Function("erf"), 0.5, 0.5204998778),
        (Function("silu"), 1, 0.7310585786),
        (Function("mish"), 1, 0.8650983883),
        (Function("hard_swish"), 1, 0.6666666667),
        (Function("softsign"), 1, 0.5),
        (Function("atan"), 1, 0.7853981634),
        (Function("atan"), -math.inf, -1.5707963268),
        (Function("sinh"), -2, -3.6268604078),
        (Function("cosh"), -2, 3.7621956911),
        (Function("cosh"), 0, 1),
        (Function("selu"), 1, 1.0507009873554805),
        (Function("root"), 2.0**-126, 2.0**-63),
        (Function("root"), 2.0**127, 2.0**63.5),
        (Function("root"), math.inf, math.inf),
        (Function("root"), -math.inf, math.nan),
        (Function("root"), -(2.0**-126), math.nan),
        (Function("reciprocal"), 2.0**-126, 2.0**126),
        (Function("reciprocal"), -3, -1 / 3),
        (Function("reciprocal"), 2.0**126, 2.0**-126),
        (Function("reciprocal"), 1.5 * 2.0**126, 0),
        (Function("reciprocal"), math.inf, 0),
        (Function("reciprocal", (3e38,)), -1e38, -3),
        (Function("reciprocal", (2.0**-126,)), 2.0**-126, 1),
        (Function("inverse_root"), 2.0**-126, 2.0**63),
        (Function("inverse_root"), 3 * 2.0**125, 2.0**-63 / math.sqrt(1.5)),
        (Function("inverse_root"), math.inf, 0),
        (Function("inverse_root"), -1, math.nan),
    ):
        found = float(apply(function, np.array([x], np.float32))[0])
        exact = float(bfloat16(value))
        assert (
            found == exact
            or math.isnan(found)
            and math.isnan(exact)
            or function.name in NEXT
            and abs(found - exact) <= 2.0**-7 * abs(value)
        ), f"{function} of {x}: {found}"


def test_none_and_relu_are_of_binary32():
    sums = np.array([1.0 + 2.0**-20, -1, -0.0, np.inf], np.float32)
    assert apply(NONE, sums).tolist() == sums.tolist()
    assert apply(RELU, sums).tolist() == [sums[0], 0, 0, np.inf]


def test_refused():
    with pytest.raises(ValueError, match="must be one of none, relu.* not 'sin'"):
        Function("sin")
    with pytest.raises(ValueError, match="tanh takes 0 parameters, not 1"):
        Function("tanh", (1,))
    for parameters in ((2, 1), (math.nan,)):
        with pytest.raises(ValueError, match="clip cannot have the parameters"):
            Function("clip", parameters)
    with pytest.raises(ValueError, match=r"clip\(0.1, 1e\+10\) does not fit the function table: .* units in the last place"):
        table_of(Function("clip", (0.1, 1e10)))


def test_signs_of_zero():
    """Clips to 0 and to -0 have separate tables, whichever is made first. The root of -0 is -0, and reciprocals of zeros are
    infinities."""
    for low in (0.0, -0.0):
        assert str(apply(Function("clip", (low, 6)), np.array([-1], np.float32))[0]) == str(low)
    zeros = np.array([0.0, -0.0], np.float32)
    for name, expected in (("root", "0.0 -0.0"), ("reciprocal", "inf -inf"), ("inverse_root", "inf -inf")):
        assert " ".join(map(str, apply(Function(name), zeros))) == expected


@pytest.mark.parametrize(
    "slope, shift, fits", [(0.2, 0.5, True), (7, -2, True), (-3, 30, True), (1, 1e27, False), (1e6, -1e8, False)]
)
def test_jump_between_bfloat16(slope, shift, fits):
    """A function is refused if it jumps between two neighbouring bfloat16, because a table entry holds a straight line there."""
    function = Function("hard_sigmoid", (slope, shift))
    if fits:
        table_of(function)
    else:
        with pytest.raises(ValueError, match="changes too much between two bfloat16"):
            table_of(function)


def test_error_measure_finds_wrong_tables():
    """The error measure of function tables exceeds 1 for a table with one wrong value or slope, and for the table of a similar
    function."""
    function, table = Function("tanh"), table_of(Function("tanh"))
    place = 5 << 7 | 9
    sums = EVERY[(table.first + 5 << 7) + 9] + np.arange(0, 1 << 16, 16, dtype=np.uint32)
    assert errors(function, sums, lookup(sums, table)).max() < 0.7
    for wrong, change, first in ((2 * place, 1, 0), (2 * place + 1, 16, -1)):
        words = table.words.copy()
        words[wrong] += change
        found = errors(function, sums, lookup(sums, replace(table, words=words)))
        assert found.max() > 1 and found[first] > 1
    assert errors(Function("gelu"), EVERY, lookup(EVERY, table_of(Function("gelu_tanh")))).max() > 1
    assert errors(Function("abs"), EVERY, np.where(EVERY == 0x7F800000, 0x7F7F, EVERY >> 16 & 0x7FFF)).max() == np.inf


def test_hand_computed_lookups():
    """A look-up equals hand-computed results for the entry of 1.0: value, slope, operand bits and result."""

    def slope(rest, gain):
        return (rest & 15) << 12 | gain & 0xFFF

    for value, second, sums, expected in (
        (0x3F80, slope(0, 0), 0x3F800000, 0x3F80),
        (0x3F80, slope(0, 0), 0x3F80FFFF, 0x3F80),
        (0x3F80, slope(0, 8), 0x3F807FF0, 0x3F80),  # a unit in the last place further at the end: half way, not quite
        (0x3F80, slope(0, 8), 0x3F808000, 0x3F81),  # and quite, a tie
        (0x3F80, slope(-1, 8), 0x3F808000, 0x3F80),  # less than the tie
        (0x3F80, slope(7, 1), 0x3F808000, 0x3F81),
        (0xBFFF, slope(0, 16), 0x3F80FFF0, 0xC000),  # crosses into the next binade, by two of its units
        (0xBFFF, slope(0, 32), 0x3F80C000, 0xC001),  # crosses into the next binade, after 255 + 3 units of the lower one
        (0x3F80, slope(0, -8 * 64), 0x3F808000, 0x3F40),  # 128 - 32: a binade lower
        (0x3F80, slope(0, -8 * 128), 0x3F80C000, 0x3E80),  # 128 - 96: two binades lower
        (0x3F80, slope(0, -8 * 128), 0x3F80C010, 0x0000),  # and less than that
        (0x3F80, slope(0, -8 * 256), 0x3F80FFF0, 0x0000),  # below 0
        (0xFF7F, slope(0, 8), 0x3F80C000, 0xFF80),  # to infinity
        (0x8080, slope(0, -8), 0x3F80C000, 0x8000),  # to a subnormal, which is a zero
        (0x8080, slope(0, -2), 0x3F808000, 0x8080),  # rounded up to the least normal number
        (0x0001, slope(0, 0x7FF), 0x3F80C000, 0x0000),
        (0x7FC0, slope(0, 0), 0x3F800000, 0x7FC0),
        (0xFF81, slope(0, 0), 0x3F800000, 0x7FC0),
    ):
        words = np.zeros(2 * TABLE_ENTRIES, np.uint16)
        words[[2 * (127 - 120 << 7), 2 * (127 - 120 << 7) + 1]] = value, second
        found = int(lookup([sums], Table(120, 0, 0, words))[0])
        assert found == expected, f"{value:#x}, {second:#x} of {sums:#x}: {found:#x}, not {expected:#x}"


def test_values_beyond_the_table():
    """Beyond its binades, a table keeps the value of its last bfloat16, or continues in proportion to the input."""
    words = np.zeros(2 * TABLE_ENTRIES, np.uint16)
    words[[2 * 3, 2 * 3 + 1, 2 * (15 << 7) + 6, 2 * (15 << 7) + 7]] = 0x3F83, 16, 0x4183, 16
    for bits, expected in ((0x3C038000, 0x3F84), (0x3B838000, 0x3F83), (0x43838000, 0x4184), (0x44038000, 0x4183)):
        assert lookup([bits], Table(120, 0, 0, words)) == [expected]
        beyond = {0x3B838000: 0x3F04, 0x44038000: 0x4204}.get(bits, expected)
        assert lookup([bits], Table(120, 1, 1, words)) == [beyond] and lookup([bits], Table(120, 2, 2, words)) == [expected]


@pytest.mark.parametrize(
    "scale, expected, ends",
    [
        (0, (0.125, 0.25, 3, 6), (0, 1.5 * 2.0**127)),
        (1, (0.375, 0.5, 2, 3), (0, math.inf)),
        (2, (8, 4, 0.75, 0.375), (math.inf, 0)),
        (3, (6, 2, 0.5, 0.75), (math.inf, 0)),
    ],
)
def test_powers_by_hand(scale, expected, ends):
    """Functions of two binades continue by the power of `scale` at 1/8, 1/4, 4 and 8, and at 0 and infinity.

    The functions are 1 from 1 to 2, and 1.5 from 2 to 4. For a root, the nearest binade is an even number of binades away. The
    two binades are stored in the last and the first place of the memory.
    """
    words = np.full((2, 16, 128, 2), 0x7FC0)
    words[:, 15], words[:, 0] = (0x3F80, 0), (0x3FC0, 0)
    table = Table(127, 3, 3, words.ravel(), scale=scale, base=15, spare=14)
    operands = np.array([0.125, 0.25, 4, 8, 0, math.inf], np.float32)
    for sign in (1, -1):
        found = (lookup((sign * operands).view(np.uint32), table).astype(np.uint32) << 16).view(np.float32)
        assert found.tolist() == [*expected, *ends]


def test_powers_of_random_numbers():
    """Reciprocals and roots of binary32 numbers of all exponents, and of all bfloat16, need one or two binades."""
    rng = np.random.default_rng(seed())
    sums = rng.integers(0, 1 << 32, 300_000, dtype=np.uint32)
    sums &= np.where(sums & 0x7F800000, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    for name, binades in (("root", 2), ("reciprocal", 1), ("inverse_root", 2)):
        function, table = Function(name), table_of(Function(name))
        assert table.binades == binades and errors(function, sums, lookup(sums, table)).max() < 0.57
        assert errors(function, EVERY, lookup(EVERY, table)).max() <= 0.5


def test_two_functions_in_one_memory():
    """GELU in 14 binades and the inverse root in two are stored side by side, and both are accurate."""
    gelu, root = gelu_beside_root()
    assert errors(Function("gelu"), EVERY, lookup(EVERY, gelu)).max() <= 1  # two binades fewer than its own table has
    assert errors(Function("inverse_root"), EVERY, lookup(EVERY, root)).max() < 0.5


def test_needed_binades_by_hand():
    """Tables of one constant, or of one straight line, need one binade. A gain or a rounding error in one place keeps the binades
    that differ."""
    constant, line = np.full((2, 16, 128), 0x3F80), 0x3F80 + np.arange(16)[:, None] * 0x80 + np.zeros((2, 16, 128), int)
    for values, linear, ends in ((constant, (0, 0), [(0, 1), (15, 16), (14, 16)]), (line, (1, 1), [(0, 1), (14, 16), (14, 16)])):
        for slope, expected in zip((0, 8, 1 << 12), ends):
            slopes = np.zeros((2, 16, 128), int)
            slopes[1, 15, 5] = slope
            assert function_tables._needed(values, slopes, linear, linear) == expected


@pytest.mark.parametrize(
    "function", all_but([Function("tanh"), Function("clip", (0, 6)), Function("leaky_relu")], TABLES), ids=str
)
def test_short_tables_are_exact(monkeypatch, function):
    """Without the binades that a table does not need, the function is the same."""
    rng, short = np.random.default_rng(seed()), table_of(function)
    monkeypatch.setattr(function_tables, "_needed", lambda values, slopes, low, high: (0, 16))
    whole = function_tables._computed(function)
    assert function.scale or whole.binades == 16
    sums = EVERY | rng.integers(0, 1 << 16, (8, 1 << 16), dtype=np.uint32)
    assert (lookup(sums, short) == lookup(sums, whole)).all()

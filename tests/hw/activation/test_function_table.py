# amaranth: UnusedElaboratable=no
"""Tests of the function table and its multiplier, covering every function and random tables, on binary32 values with all 65,536
upper halves."""

import functools
import random

import numpy as np
import pytest

from activation_functions import TABLES, gelu_beside_root
from amaranth_tpu.hw.activation.function_table import FunctionPair, FunctionTable
from amaranth_tpu.hw.spec.isa import TABLE_ENTRIES, TABLE_WORDS
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.arithmetic import multiply, to_bfloat16, without_minus_zero
from amaranth_tpu.sim.golden.function_tables import table_of
from amaranth_tpu.sim.golden.table_lookup import Table, lookup
from amaranth_tpu.sim.ir.inverse_root import NormFactor
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.rtl.simulators import run_icarus
from amaranth_tpu.sim.rtl.streams import StreamedBlock, simulate_columns
from seeds import seed
from suites import all_but

EVERY = np.arange(1 << 16, dtype=np.uint32)
LATENCY = FunctionTable.latency


@functools.cache
def block():
    return StreamedBlock(FunctionTable(lanes=2))


def packed(values, width):
    """Packs two lanes, an array [cycle, lane] of `width` bits each, into one integer per cycle."""
    return (values[:, 0] | values[:, 1] << width).astype(np.uint32)


def stream(run, table, x, w=None, keep=3):
    """Returns the outputs [cycle, lane] of a loaded table for binary32 inputs `x` [cycle, lane]. If `w` is given, returns
    products of the upper halves of `x` and `w`."""
    loads = TABLE_ENTRIES if w is None else 0
    count, cycles = len(x), loads + len(x) + LATENCY
    x = x.astype(np.int64)
    columns = {"x": packed(x >> 16, 16), "between": packed(x >> 4 & 0xFFF, 12)} | ({} if w is None else {"w": packed(w, 16)})
    inputs = {name: np.zeros(cycles, np.uint32) for name in columns}
    for name, column in columns.items():
        inputs[name][loads : loads + count] = column
    constant = {
        "enable": 1,
        **{name: getattr(table, name) for name in ("first", "linear_low", "linear_high", "scale", "base")},
        "last": 15 - table.spare,
        "keep": keep,
        "multiply": w is not None,
        "write": np.arange(cycles) < loads,
        "entry": np.arange(cycles) % TABLE_ENTRIES,
        "data": np.concatenate(
            [packed(table.words.reshape(-1, 2)[:loads].astype(np.uint32), 16), np.zeros(cycles - loads, np.uint32)]
        ),
    }
    inputs |= {name: np.broadcast_to(np.asarray(column, np.uint32), cycles) for name, column in constant.items()}
    found = run(**inputs)["o"][loads + LATENCY :]
    return np.stack([found & 0xFFFF, found >> 16], axis=1)


def operands(rng):
    """Returns binary32 values [cycle, lane] with every upper half, once with a zero and three times with a random lower half."""
    low = rng.integers(0, 1 << 16, (4, 1 << 16), dtype=np.uint32)
    low[0] = 0
    return both_lanes((EVERY << np.uint32(16) | low).ravel())


def both_lanes(values):
    """Returns the values in two lanes [cycle, lane], shifted by one cycle, so that each lane sees every value."""
    return np.stack([values, np.roll(values, 1)], axis=1)


FEW = [Function("silu"), Function("exp"), Function("clip", (-3,)), Function("hard_sigmoid", (1 / 6, 0.5))]


# promise: table-rounds-once
@pytest.mark.parametrize("function", [*all_but(FEW, TABLES), NormFactor()], ids=str)
def test_functions(function):
    x = operands(np.random.default_rng(seed()))
    assert (stream(block().run, table_of(function), x) == lookup(x, table_of(function))).all()


@pytest.mark.slow
def test_two_functions_in_one_memory():
    """GELU in 14 binades and the inverse root in two binades of the same memory give the golden model's results."""
    x = operands(np.random.default_rng(seed()))
    for table in gelu_beside_root():
        assert (stream(block().run, table, x) == lookup(x, table)).all()


_MOST = {"first": 255, "linear_low": 3, "linear_high": 3, "scale": 3, "base": 15, "spare": 15}


def random_table(rng, **settings):
    """Returns a function table with random words, which include infinities, NaNs and subnormals. Default: random settings."""
    drawn = {name: int(rng.integers(0, most + 1)) for name, most in _MOST.items()}
    return Table(**drawn | settings, words=rng.integers(0, 1 << 16, TABLE_WORDS).astype(np.uint16))


def test_random_tables():
    rng = np.random.default_rng(seed())
    x = both_lanes(EVERY << np.uint32(16) | rng.integers(0, 1 << 16, len(EVERY), dtype=np.uint32))
    powers = {"linear_low": 3, "linear_high": 3}
    firsts, scales = [*rng.integers(112, 132, 4).tolist(), 0, 1, 239, 240], [*range(4), *rng.permutation(4).tolist()]
    cases = [{"first": first, "scale": scale, **powers} for first, scale in zip(firsts, scales)]
    for settings in (*cases, {"scale": 0, "base": 0, "spare": 0}, {}, {}, {}):
        table = random_table(rng, **settings)
        found, expected = stream(block().run, table, x), lookup(x, table)
        wrong = np.argwhere(found != expected)
        assert not len(wrong), f"{len(wrong)} wrong, first {x[tuple(wrong[0])]:#x}: {found[tuple(wrong[0])]:#x}"


def product(x, w):
    return to_bfloat16(without_minus_zero(multiply(x, w)))


# promise: multiply-rounds, no-minus-zero
def test_products():
    rng = np.random.default_rng(seed())
    x, w = numbers(rng, (2, 1 << 17, 2), 0.7, 16)
    sums = x << 16 | rng.integers(0, 1 << 16, x.shape)
    assert (stream(block().run, random_table(rng), sums, w) == product(x, w)).all()


_BENCH = """
module bench;
  reg clk = 0, rst = 0;
  wire [15:0] o;
  pair dut (.clk(clk), .rst(rst), .enable(1'b1), .multiply(1'b1), .first(8'b0), .linear_low(2'b0), .linear_high(2'b0),
    .scale(2'b0), .base(4'b0), .last(4'hf), .write(1'b0), .entry(12'b0), .data(32'b0), .x(16'h4040),
    .between(12'hfff), .w(16'hc000), .keep(1'b1), .o(o));
  initial begin
    repeat (40) #1 clk = ~clk;
    $display("%b", o);
  end
endmodule
"""


def test_product_without_a_table():
    """Multiplies 3 by -2 in Icarus Verilog before the table is loaded. The unknown table entries must not reach the product."""
    assert int(run_icarus(component_to_verilog(FunctionPair(lanes=1), name="pair") + _BENCH), 2) == 0xC0C0


def test_lanes_that_are_not_kept():
    x = both_lanes(EVERY[::16] << np.uint32(16) | np.uint32(0x9876))
    table = table_of(Function("exp"))
    for keep in range(4):
        expected = np.where([keep & 1, keep >> 1], lookup(x, table), 0)
        assert (stream(block().run, table, x, keep=keep) == expected).all()


def test_table_stalls_without_enable():
    """While `enable` is 0, the table does not look up, write or multiply, so random pauses do not change the results."""
    rng = random.Random(seed())
    inside = {"first": rng.randrange(241), "scale": 0, "base": 0, "spare": 0}
    table = random_table(np.random.default_rng(rng.getrandbits(32)), **inside)
    places = [rng.randrange(TABLE_ENTRIES) for _ in range(100)]
    pairs = table.words.astype(int).reshape(-1, 2)
    loads = [(1, entry, int(pairs[entry, 0] | pairs[entry, 1] << 16)) for entry in places]
    # Inputs that select the loaded entries.
    x = [place >> 11 << 15 | ((place >> 7 & 15) + table.first << 7 | place & 127) for place in places]
    between, w, products = ([rng.getrandbits(bits) for _ in x] for bits in (12, 16, 1))
    steps = [
        *((*load, 0, 0, 0, 0) for load in loads),
        *((0, 0, 0, *given) for given in zip(x, between, w, products)),
        *[(0,) * 7] * LATENCY,
    ]
    enable, index = [], []
    for step in range(len(steps)):
        while rng.random() < 0.4:
            enable.append(0)
            index.append(step)
        enable.append(1)
        index.append(step)
    names = ("write", "entry", "data", "x", "between", "w", "multiply")
    inputs = {name: [steps[i][column] for i in index] for column, name in enumerate(names)}
    constant = {name: [value] * len(enable) for name, value in {"keep": 1, "first": table.first, "last": 15}.items()}
    found = simulate_columns(FunctionTable(lanes=1), **inputs, **constant, enable=enable)["o"]
    moved = np.flatnonzero(enable)[len(loads) + LATENCY :]
    sums = np.array(x, np.uint32) << np.uint32(16) | np.array(between, np.uint32) << np.uint32(4)
    expected = np.where(products, product(x, w), lookup(sums, table))
    assert (found[moved] == expected).all()


@pytest.mark.parametrize("lanes", [0, 3])
def test_refused(lanes):
    with pytest.raises(ValueError, match="lanes must be 1 or 2"):
        FunctionPair(lanes=lanes)

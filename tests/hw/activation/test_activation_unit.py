# amaranth: UnusedElaboratable=no
"""Tests of the activation unit against its model in three simulators, covering results, order of vectors, stalls, and cycles per
vector."""

import random

import numpy as np
import pytest

from amaranth_tpu.hw.activation.activation_lane import ActivationLane
from amaranth_tpu.hw.activation.result_units import result_units
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Task
from amaranth_tpu.hw.spec.operations import activate_layout
from amaranth_tpu.sim.benches.activation_model import canonical, sums
from amaranth_tpu.sim.benches.activation_operations import ones
from amaranth_tpu.sim.benches.bench_activation_unit import functions, paces, runs
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.number_classes import one_of_each
from amaranth_tpu.sim.rtl.ports import simulate
from amaranth_tpu.sim.rtl.streams import simulate_columns as stream
from block_benches import run_block
from seeds import seed
from suites import slow


def sizes(n, in_flight=16):
    return PLAIN | {"n": n, "unified_buffer_depth": 16 * n, "accumulator_depth": 8 * n, "bias_depth": 2, "in_flight": in_flight}


# promise: relu
def test_lane_rounds_hand_computed_sums():
    """Compares the lane's bfloat16 output for hand-computed sums, with and without ReLU."""
    table = [
        (0x3F808000, 0x3F80, 0x3F80),  # a tie, to even: down
        (0x3F818000, 0x3F82, 0x3F82),  # a tie, to even: up
        (0x3F808001, 0x3F81, 0x3F81),
        (0x3F807FFF, 0x3F80, 0x3F80),
        (0xBF818000, 0xBF82, 0x0000),
        (0x3FFF8000, 0x4000, 0x4000),  # carries into the exponent
        (0x7F7F8000, 0x7F80, 0x7F80),  # rounds up to infinity
        (0x7F7F7FFF, 0x7F7F, 0x7F7F),
        (0xFF7FFFFF, 0xFF80, 0x0000),
        (0x00808000, 0x0080, 0x0080),
        (0x80808001, 0x8081, 0x0000),
        (0x00000000, 0x0000, 0x0000),
        (0x80000000, 0x8000, 0x0000),
        (0x7F800000, 0x7F80, 0x7F80),
        (0xFF800000, 0xFF80, 0x0000),
        (0x7FC00000, 0x7FC0, 0x7FC0),
    ]
    value, none, relu = np.array(table, dtype=np.uint32).T
    for function, expected in ((FunctionCode.NONE, none), (FunctionCode.RELU, relu)):
        found = stream(ActivationLane(), value=value, relu=[function is FunctionCode.RELU] * len(value), keep=[1] * len(value))
        assert [hex(bits) for bits in found["rounded"]] == [hex(bits) for bits in expected]


# promise: rounded-once
def test_lane():
    rng = random.Random(seed())
    values = sums(rng, 2500)
    relu, keep = (np.array([rng.random() < part for _ in values], dtype=np.uint32) for part in (0.5, 0.9))
    found = stream(ActivationLane(), value=values, relu=relu, keep=keep)
    expected = np.where(keep, np.where(relu, golden.relu(values), values), 0)
    assert (found["binary32"] == expected).all()
    assert (found["rounded"] == golden.to_bfloat16(expected)).all()


def test_lane_with_table_rounds_or_truncates():
    """A lane with a function table passes binary32 through and rounds it to bfloat16, or truncates it to the upper 16 bits if
    `cut` is set."""
    values = canonical(one_of_each(np.random.default_rng(seed()), count=20))
    for cut in (0, 1):
        constant = {name: [bit] * len(values) for name, bit in (("relu", 0), ("cut", cut), ("keep", 1))}
        found = stream(ActivationLane(cuts=True), value=values, **constant)
        assert (found["binary32"] == values).all()
        assert (found["rounded"] == (values >> 16 if cut else golden.to_bfloat16(values))).all()


# promise: planes-exact
def test_lane_outputs_either_half():
    """A lane with `halves` outputs the upper or the lower 16 bits of the binary32 result, as `cut` and `low` select."""
    rng = random.Random(seed())
    values = sums(rng, 2500)
    inputs = ("relu", "keep", "cut", "low", "wide")
    relu, keep, cut, low, wide = (np.array([rng.getrandbits(1) for _ in values], dtype=np.uint32) for _ in inputs)
    low &= cut
    found = stream(ActivationLane(cuts=True, halves=True), value=values, relu=relu, keep=keep, cut=cut, low=low, wide=wide)
    expected = np.where(keep, np.where(relu, golden.relu(values), values), 0)
    halves = np.where(cut, np.where(low, expected & 0xFFFF, expected >> 16), golden.to_bfloat16(expected))
    assert (found["rounded"] == np.where(wide, 0, halves)).all()
    assert (np.where(found["stays"], values, 0) == expected).all()


ALL = {"table_lanes": 2, "pooling": True, "softmax": True}
TRAINING = {"pooling": True, "softmax": True, "attention": True, "training": True}
FEATURES = [{}, {"pooling": True}, {"table_lanes": 1}, {"softmax": True}, ALL, TRAINING, ALL | TRAINING]


@pytest.mark.parametrize("n, in_flight", [(2, 4), (4, 16), (8, 32)])
def test_amaranth(n, in_flight):
    config = sizes(n, in_flight)
    assert simulate(result_units(Config(**config)), runs, seed=seed(), **config, count=10) >= 40


# promise: pool-first, first-maximum
@pytest.mark.parametrize(
    "n, features",
    [
        (4, TRAINING | {"table_lanes": 1}),
        *slow(*((n, features) for n in (4, 8) for features in (*FEATURES[1:], {"table_lanes": n}))),
    ],
    ids=str,
)
def test_amaranth_with(n, features):
    config = sizes(n) | features
    assert simulate(result_units(Config(**config)), runs, seed=seed(), **config, count=12, part=16) > 12


@pytest.mark.parametrize("table_lanes, pooling", [(1, False), (2, True), (4, True)])
def test_cycles_per_vector_of_functions(table_lanes, pooling):
    """The activation unit takes n / table_lanes cycles per vector with a function table, and one cycle per vector without. The
    table adds eight cycles of latency, and nine with n lanes."""
    config = sizes(4) | {"table_lanes": table_lanes, "pooling": pooling}
    table, none = simulate(result_units(Config(**config)), functions, seed=seed(), rows=20, **config)
    assert none == 3 + 19
    assert table == 11 + 20 * (4 // table_lanes) - (table_lanes < 4)


def select(rows, rows1=1, **changes):
    """Returns the fields of a SELECT of `rows` x `rows1` rows whose operands are stored consecutively starting at buffer row
    100."""
    strides = {"operand_stride": rows, "buffer_stride": rows, "rows1_stride": 1}
    return {"select": 1, "rows": rows, "rows1": rows1, "operand": 100, "single": ones(rows, rows1), **strides, **changes}


def results(rows, **changes):
    return {"rows": rows, "single": ones(rows), **changes}


# promise: select-stalls
@pytest.mark.parametrize("table_lanes, grants", [(0, 1), *slow((2, 0.6))])
def test_cycles_per_row_of_select(table_lanes, grants):
    """SELECT takes 2 cycles per row after a latency of 5 cycles. A row takes 6 cycles if its operand is the preceding result. A
    SELECT takes 4 more cycles after a SELECT, and 3 more after another operation. Each cycle without a buffer grant adds one
    cycle."""
    config = sizes(4) | TRAINING | {"table_lanes": table_lanes, "unified_buffer_depth": 256, "accumulator_depth": 64}
    cases = [
        ([select(20)], 5 + 19 * 2),
        ([select(4, 5)], 5 + 19 * 2),
        ([select(20, row=100)], 5 + 19 * 2),  # results overwrite their operands
        ([select(20, row=99)], 5 + 19 * 2),
        ([select(20, row=102)], 5 + 19 * 2),
        ([select(20, row=101)], 5 + 19 * 6),
        ([select(20), select(4, 5), select(20)], 5 + 59 * 2 + 2 * 4),
        ([select(20), results(20)], 5 + 19 * 2 + 20),
        ([results(20), select(20)], 20 + 3 + 5 + 19 * 2),
    ]
    programs = [program for program, _ in cases]
    found = simulate(result_units(Config(**config)), paces, seed=seed(), programs=programs, grants=grants, **config)
    assert found == [cycles for _, cycles in cases]


PACES = [(1, 1), (1, 0.6), (2, 1), (4, 1), (4, 0.3), (8, 0.6)]


def multiply(rows, **changes):
    """Returns the fields of a MULTIPLY of `rows` rows whose operands are stored consecutively starting at buffer row 100."""
    return {"task": Task.MULTIPLY, "rows": rows, "operand": 100, "single": ones(rows), **changes}


# promise: multiply-hazard
@pytest.mark.parametrize(
    "features, table_lanes, grants",
    [
        ({}, 8, 1),
        *slow(
            (TRAINING, 4, 0.6),
            *((features, lanes, grants) for features in ({}, {"pooling": True}, TRAINING) for lanes, grants in PACES),
        ),
    ],
    ids=str,
)
def test_cycles_per_row_of_multiply(features, table_lanes, grants):
    """MULTIPLY takes max(n / table_lanes, 2) cycles per row. If an operand is the result of one of the preceding eight
    rows, each row waits for that result. With n lanes, a result comes one cycle later."""
    config = sizes(8) | {**features, "table_lanes": table_lanes, "unified_buffer_depth": 256, "accumulator_depth": 64}
    vector = 8 // table_lanes
    pace, first = max(vector, 2), 11 + vector + (table_lanes == 8)
    fields = set(dict(activate_layout(Config(**config))))
    alone = first + 1
    cases = [
        ([multiply(12)], first + 11 * pace),
        ([multiply(12, row=100)], first + 11 * pace),  # results overwrite their operands
        ([multiply(12, row=99)], first + 11 * pace),
        *(([multiply(12, row=100 + ahead)], first + 11 * alone) for ahead in (1, 2, 5, 8)),
        ([multiply(12, row=109)], first + 11 * pace),
        ([multiply(1), multiply(12, row=100)], first + alone + 11 * pace),
        ([multiply(12), results(12)], first + 11 * pace + 12),
        ([results(12), multiply(12)], 12 + 3 + first + 11 * pace),
    ]
    programs = [[{name: op[name] for name in op if name in fields} for op in program] for program, _ in cases]
    found = simulate(result_units(Config(**config)), paces, seed=seed(), programs=programs, grants=grants, **config)
    assert found == [cycles for _, cycles in cases]


@pytest.mark.parametrize("grants", [1, *slow(0.6)])
def test_cycles_per_vector_of_formats(grants):
    """Each output format sustains a vector a cycle. Windows of four rows take four cycles per vector. A binary32 result takes
    one more cycle."""
    config = sizes(4) | TRAINING | {"unified_buffer_depth": 256, "accumulator_depth": 64}
    windows = {"rows": 3, "rows1": 4, "window0": 2, "window1": 2, "single": ones(3, 4, 2, 2)}
    cases = [
        ([results(20, format=Format.PLANES)], 3 + 39),
        ([results(20, format=Format.BINARY32, buffer_step=2)], 3 + 39),
        ([windows | {"format": Format.INDEX}], 4 + 47),
        ([windows | {"format": Format.BINARY32, "buffer_step": 2}], 4 + 59),
        ([results(12, format=Format.INDEX)], 4 + 11),  # windows of one row: a cycle later than without an index
        ([results(12)], 3 + 11),
    ]
    programs = [program for program, _ in cases]
    found = simulate(result_units(Config(**config)), paces, seed=seed(), programs=programs, grants=grants, **config)
    assert found == [cycles for _, cycles in cases]


@pytest.mark.parametrize(
    "simulator, features",
    slow(*((simulator, features) for simulator in runner.Simulators for features in (FEATURES[0], FEATURES[-1]))),
    ids=str,
)
def test_verilog(simulator, features):
    made = sizes(4) | features
    result = run_block(result_units(Config(**made)), "activation_unit", simulator, "random_operations", **made, count=30)
    assert result["vectors"] > 30

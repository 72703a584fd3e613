# amaranth: UnusedElaboratable=no
"""The activation unit: functions, rounding, lanes, halves, order, pace and waits, in three simulators."""

import functools
import random

import numpy as np
import pytest

from amaranth_tpu.hw.activation.activation_unit import ActivationLane
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Function
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.benches.activation_model import TIES, canonical, number
from amaranth_tpu.sim.benches.bench_activation_unit import functions, runs, unit
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from amaranth_tpu.sim.rtl.streams import simulate_columns as stream
from seeds import seed


def sizes(n, in_flight=16):
    return PLAIN | {"n": n, "unified_buffer_depth": 16 * n, "accumulator_depth": 8 * n, "bias_depth": 2, "in_flight": in_flight}


def test_lane_by_hand():
    """Worked out by hand: (sum, as bfloat16, as bfloat16 after ReLU)."""
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
    for function, expected in ((Function.NONE, none), (Function.RELU, relu)):
        found = stream(ActivationLane(), value=value, relu=[function is Function.RELU] * len(value), keep=[1] * len(value))
        assert [hex(bits) for bits in found["rounded"]] == [hex(bits) for bits in expected]


def test_lane():
    rng = random.Random(seed())
    values = np.array([canonical(bits) for bits in TIES] + [number(rng) for _ in range(2500)], dtype=np.uint32)
    relu, keep = (np.array([rng.random() < part for _ in values], dtype=np.uint32) for part in (0.5, 0.9))
    found = stream(ActivationLane(), value=values, relu=relu, keep=keep)
    expected = np.where(keep, np.where(relu, golden.relu(values), values), 0)
    assert (found["binary32"] == expected).all()
    assert (found["rounded"] == golden.to_bfloat16(expected)).all()


def test_lane_with_table():
    """With `cut`, the upper half is that of the sum."""
    values = np.array([canonical(bits) for bits in TIES] + [0x3F80FFFF, 0xC2F7FFFF], dtype=np.uint32)
    for cut in (0, 1):
        constant = {name: [bit] * len(values) for name, bit in (("relu", 0), ("cut", cut), ("keep", 1))}
        found = stream(ActivationLane(table=True), value=values, **constant)
        assert (found["binary32"] == values).all()
        assert (found["rounded"] == (values >> 16 if cut else golden.to_bfloat16(values))).all()


FEATURES = [{}, {"pooling": True}, {"table_lanes": 1}, {"softmax": True}, {"table_lanes": 2, "pooling": True, "softmax": True}]


@pytest.mark.parametrize("n, in_flight", [(2, 4), (4, 16), (8, 32)])
def test_amaranth(n, in_flight):
    config = sizes(n, in_flight)
    assert simulate(unit(Config(**config)), runs, seed=seed(), **config, count=10) >= 40


@pytest.mark.parametrize(
    "n, features",
    [
        *((4, features) for features in (*FEATURES[1:], {"table_lanes": 4})),
        *(pytest.param(8, features, marks=pytest.mark.slow) for features in (*FEATURES[1:], {"table_lanes": 8})),
    ],
    ids=str,
)
def test_amaranth_with(n, features):
    config = sizes(n) | features
    assert simulate(unit(Config(**config)), runs, seed=seed(), **config, count=20, part=16) > 20


@pytest.mark.parametrize("table_lanes, pooling", [(1, False), (2, True), (4, True)])
def test_pace_of_functions(table_lanes, pooling):
    """A vector every n / table_lanes cycles, the first one eight cycles after one without the table; others a vector a cycle."""
    config = sizes(4) | {"table_lanes": table_lanes, "pooling": pooling}
    table, none = simulate(unit(Config(**config)), functions, seed=seed(), rows=20, **config)
    assert none == 3 + 19
    assert table == 11 + 20 * (4 // table_lanes) - 1


@functools.cache
def verilog(features):
    return component_to_verilog(unit(Config(**sizes(4) | dict(features))), name="activation_unit")


@pytest.mark.parametrize(
    "simulator, features",
    [
        ("icarus", FEATURES[0]),
        *((simulator, FEATURES[-1]) for simulator in runner.Simulators),
        pytest.param("verilator", FEATURES[0], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_verilog(simulator, features):
    simulation = runner.Simulation(
        simulator=simulator, verilog=verilog(tuple(features.items())), top="activation_unit", quick=True
    )
    result = simulation.run(
        "amaranth_tpu.sim.benches.bench_activation_unit",
        testcase="random_operations",
        seed=seed(),
        timeout=120,
        arguments={**sizes(4), **features, "count": 30},
    )
    assert result["vectors"] > 30

# amaranth: UnusedElaboratable=no
"""The softmax unit: rows of every kind, tiles, lanes, formats, waits and resets, in three simulators."""

import functools

import pytest
from seeds import seed

from hw.config import Config
from hw.export import component_to_verilog
from hw.operations import softmax_layout
from hw.softmax_unit import SoftmaxUnit
from sim import runner
from sim.bench_softmax_unit import operations, runs
from sim.ports import simulate


def sizes(n, window=16):
    return {"n": n, "unified_buffer_depth": 64 * n, "accumulator_depth": 16 * n, "bias_depth": 2, "window": window}


def unit(**values):
    config = Config(**values)
    return SoftmaxUnit(n=config.n, softmax=softmax_layout(config))


@pytest.mark.parametrize("n, widest", [(2, 40), (4, 12), (8, 6)])
def test_amaranth(n, widest):
    assert simulate(unit(**sizes(n)), runs, seed=seed(), **sizes(n), widest=widest, count=12) > 100

"""Tests of the whole core: networks on all sizes and memories."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.rtl.runner import Simulators
from core_networks import network_runs
from core_runs import MEMORY, MIXED, PAUSED, SIZES, SLOW, SMALL, SMALLEST, TINY, MemoryBuilder, run
from suites import all_but, slow


def check_networks(rng, config, count, *, simulator="icarus", memory=None, most=40, size=MEMORY):
    host = MemoryBuilder(rng, size)
    runs, check = network_runs(rng, config, host, count, most)
    check(run(config, host, runs, simulator=simulator, memory=memory))


# promise: padding
@pytest.mark.parametrize(
    "simulator, memory", all_but([("verilator", PAUSED)], Simulators, ({"latency": 1}, {"latency": 32}, SLOW, PAUSED)), ids=str
)
def test_networks(rng, simulator, memory):
    check_networks(rng, SMALL, 3 if simulator == "icarus" else 12, simulator=simulator, memory=memory)


# promise: order-of-sums, sum-order, padding
@pytest.mark.parametrize("sizes", slow(MIXED, SMALLEST, *SIZES), ids=str)
def test_sizes(rng, sizes):
    check_networks(rng, Config(**{**TINY, **sizes}), 3, memory={"latency": 9, "pause_percent": 15}, most=24)

# amaranth: UnusedElaboratable=no
"""The transposer against numpy's order: all patterns of gaps and of ways through it, and random ones, in three simulators."""

import functools

import pytest

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.benches.bench_transposer import every_window, random_tiles
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


@pytest.mark.parametrize("n", [2, 4, *slow(8, 16)])
def test_random(n):
    simulate(Transposer(n=n), random_tiles, seed=seed(), n=n, count=12)


@pytest.mark.parametrize("n, length", [(2, 7), *slow((2, 8), (4, 8))])
def test_every_window(n, length):
    """The state n + latency cycles ago matters only through the vector count and the next write position."""
    assert length >= n + Transposer.latency
    assert simulate(Transposer(n=n), every_window, seed=seed(), n=n, length=length) == 3**length


@functools.cache
def verilog():
    return component_to_verilog(Transposer(n=4), name="transposer")


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    simulation = runner.Simulation(simulator=simulator, verilog=verilog(), top="transposer", quick=True)
    simulation.run(
        "amaranth_tpu.sim.benches.bench_transposer", testcase="tiles", seed=seed(), timeout=120, arguments={"n": 4, "count": 30}
    )

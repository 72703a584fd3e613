# amaranth: UnusedElaboratable=no
"""Tests of the weight FIFO in three simulators, covering weights that reach the cells, release of tiles, and the rate of
tiles."""

import functools

import pytest

from amaranth_tpu.hw.array.weight_fifo import WeightFifo
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.benches.bench_weight_fifo import first_tile, runs, stocked
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


@pytest.mark.parametrize("n, tiles, skew", [(2, 2, 1), (2, 4, 5), (4, 2, 3), (4, 4, 1), (4, 8, 2), (8, 4, 4)])
def test_amaranth(n, tiles, skew):
    sizes = {"n": n, "tiles": tiles, "skew": skew}
    distances = simulate(WeightFifo(**sizes), runs, seed=seed(), **sizes, count=2 * tiles + 1)["distances"]
    assert min(distances) >= n


@pytest.mark.parametrize("n, tiles, skew", [(2, 4, 1), (4, 4, 3), (8, 2, 5)])
def test_one_tile_every_n_cycles(n, tiles, skew):
    sizes = {"n": n, "tiles": tiles, "skew": skew}
    assert simulate(WeightFifo(**sizes), stocked, seed=seed(), **sizes) == [n] * (tiles - 1)


@pytest.mark.parametrize("n, tiles, skew", [(2, 2, 1), (4, 4, 3), (8, 2, 5)])
def test_first_tile(n, tiles, skew):
    """The first tile of weights is in the array n cycles after its last vector arrived, and is released n * skew cycles later,
    after the last lane has read it."""
    sizes = {"n": n, "tiles": tiles, "skew": skew}
    assert simulate(WeightFifo(**sizes), first_tile, seed=seed(), **sizes) == (n, n + n * skew)


SIZES = {"n": 4, "tiles": 4, "skew": 2}


@functools.cache
def verilog():
    return component_to_verilog(WeightFifo(**SIZES), name="weight_fifo")


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    simulation = runner.Simulation(simulator=simulator, verilog=verilog(), top="weight_fifo", quick=True)
    result = simulation.run(
        "amaranth_tpu.sim.benches.bench_weight_fifo",
        testcase="random_tiles",
        seed=seed(),
        timeout=120,
        arguments={**SIZES, "count": 30},
    )
    assert len(result["distances"]) == 29 and min(result["distances"]) >= 4

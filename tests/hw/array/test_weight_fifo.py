# amaranth: UnusedElaboratable=no
"""Tests of the weight FIFO in three simulators, covering weights that reach the cells, release of tiles, and the rate of
tiles."""

import pytest

from amaranth_tpu.hw.array.weight_fifo import WeightFifo
from amaranth_tpu.sim.benches.bench_weight_fifo import first_tile, runs, stocked
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from block_benches import run_block
from seeds import seed


def sizes(n, tiles, skew, weight_rows):
    return {"n": n, "tiles": tiles, "skew": skew, "weight_rows": weight_rows}


SIZES = [(2, 2, 1, 1), (2, 4, 5, 1), (4, 8, 2, 1), (8, 4, 4, 1)]


# promise: tile-order
@pytest.mark.parametrize("n, tiles, skew, weight_rows", [*SIZES, (4, 2, 3, 2), (8, 8, 1, 2)])
def test_amaranth(n, tiles, skew, weight_rows):
    size = sizes(n, tiles, skew, weight_rows)
    distances = simulate(WeightFifo(**size), runs, seed=seed(), **size, count=2 * tiles + 1)["distances"]
    assert min(distances) >= n // weight_rows


@pytest.mark.parametrize("n, tiles, skew, weight_rows", [(2, 4, 1, 1), (4, 4, 3, 1), (8, 2, 5, 1), (4, 4, 3, 2), (8, 2, 5, 2)])
def test_throughput_of_a_full_fifo(n, tiles, skew, weight_rows):
    size = sizes(n, tiles, skew, weight_rows)
    assert simulate(WeightFifo(**size), stocked, seed=seed(), **size) == [n // weight_rows] * (tiles - 1)


@pytest.mark.parametrize("n, tiles, skew, weight_rows", [(2, 2, 1, 1), (4, 4, 3, 1), (8, 2, 5, 1), (4, 4, 3, 2), (8, 2, 5, 2)])
def test_first_tile(n, tiles, skew, weight_rows):
    """The first tile of weights is in the array n / weight_rows cycles after its last vector arrived, and is released n * skew
    cycles later, after the last lane has read it."""
    size, cycles = sizes(n, tiles, skew, weight_rows), n // weight_rows
    assert simulate(WeightFifo(**size), first_tile, seed=seed(), **size) == (cycles, cycles + n * skew)


@pytest.mark.slow
@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator, weight_rows):
    made = sizes(4, 4, 2, weight_rows)
    result = run_block(WeightFifo(**made), "weight_fifo", simulator, "random_tiles", **made, count=30)
    assert len(result["distances"]) == 29 and min(result["distances"]) >= 4 // weight_rows

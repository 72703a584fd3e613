# amaranth: UnusedElaboratable=no
"""Tests of the accumulators in three simulators, covering sums, biases and whole rows, with each column skewed by one cycle."""

import pytest

from amaranth_tpu.hw.array.accumulators import Accumulators
from amaranth_tpu.sim.benches.bench_accumulators import traffic
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from block_benches import run_block
from seeds import seed
from suites import all_but


# promise: no-minus-zero
@pytest.mark.parametrize(
    "n, depth, bias_depth, latency", [(2, 4, 2, 3), (2, 16, 8, 2), (4, 8, 2, 2), (4, 16, 4, 3), (8, 32, 8, 2)]
)
def test_amaranth(n, depth, bias_depth, latency):
    sizes = {"n": n, "depth": depth, "bias_depth": bias_depth, "latency": latency}
    assert simulate(Accumulators(**sizes), traffic, seed=seed(), **sizes, cycles=400) > 400 * n


@pytest.mark.parametrize("n, latency", [(2, 2), (4, 3)])
def test_halves_of_biases(n, latency):
    sizes = {"n": n, "depth": 16, "bias_depth": 8, "latency": latency, "bias_halves": True}
    assert simulate(Accumulators(**sizes), traffic, seed=seed(), **sizes, cycles=600) > 600 * n


SIZES = {"n": 4, "depth": 16, "bias_depth": 4, "latency": 3}


@pytest.mark.parametrize("simulator, bias_halves", all_but([("icarus", True)], runner.Simulators, (False, True)))
def test_verilog(simulator, bias_halves):
    block, sizes = Accumulators(**SIZES, bias_halves=bias_halves), SIZES | {"bias_halves": bias_halves, "cycles": 1500}
    result = run_block(block, "accumulators", simulator, "random_traffic", **sizes)
    assert result["compared"] > 6000

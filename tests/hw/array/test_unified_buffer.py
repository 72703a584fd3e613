# amaranth: UnusedElaboratable=no
"""Tests of the unified buffer in three simulators, covering contents, skew of the lanes, and the port that holds its last
vector."""

import pytest

from amaranth_tpu.hw.array.unified_buffer import UnifiedBuffer
from amaranth_tpu.sim.benches.bench_unified_buffer import traffic
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from block_benches import run_block
from seeds import seed


@pytest.mark.parametrize("n, depth, skew", [(2, 8, 1), (2, 4, 5), (4, 16, 1), (4, 8, 2), (4, 16, 3), (8, 32, 4), (8, 16, 5)])
def test_amaranth(n, depth, skew):
    compared = simulate(UnifiedBuffer(n=n, depth=depth, skew=skew), traffic, seed=seed(), n=n, depth=depth, skew=skew, cycles=400)
    assert compared > 200 * n


SIZES = {"n": 4, "depth": 16, "skew": 3}


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    result = run_block(UnifiedBuffer(**SIZES), "unified_buffer", simulator, "random_traffic", **SIZES, cycles=1500)
    assert result["compared"] > 3000

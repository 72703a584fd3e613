# amaranth: UnusedElaboratable=no
"""Tests of the transposer against numpy in three simulators, with every pattern of gaps and of transposed and unchanged vectors,
and random ones."""

import pytest

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.verilog.export import component_to_rtlil
from amaranth_tpu.sim.benches.bench_transposer import every_window, random_tiles
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from block_benches import run_block
from seeds import seed
from suites import slow


@pytest.mark.parametrize("n", [2, 4, *slow(8, 16)])
def test_random(n):
    simulate(Transposer(n=n), random_tiles, seed=seed(), n=n, count=12)


@pytest.mark.parametrize("n, length", [(2, 7), *slow((2, 8), (4, 8))])
def test_every_input_pattern(n, length):
    """The transposer gives the same results as numpy's transpose for all 3**length input patterns. These suffice because older
    inputs affect only the vector count and the write position."""
    assert length >= n + Transposer.latency
    assert simulate(Transposer(n=n), every_window, seed=seed(), n=n, length=length) == 3**length


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    run_block(Transposer(n=4), "transposer", simulator, "tiles", n=4, count=30)


def test_export_grows_almost_linearly():
    """The exported text has one multiplexer per permutation level: for twice the words, less than three times the text."""
    small, large = (len(component_to_rtlil(Transposer(n=n), name="transposer")) for n in (16, 32))
    assert large < 3 * small

# amaranth: UnusedElaboratable=no
"""Tests of the systolic array in three simulators, covering bits and cycle of every sum, with tiles that follow each other
without a gap."""

import functools

import pytest

from amaranth_tpu.hw.array.systolic_array import SystolicArray
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.benches.bench_systolic_array import tiles
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


# promise: array-rate
@pytest.mark.parametrize(
    "n, stages, count",
    [*slow((2, 1, 8), (2, 2, 8)), (2, 3, 8), *slow((2, 4, 8), (2, 5, 8), (2, 8, 8), (4, 3, 5)), *slow((4, 1, 2), (4, 5, 5))],
)
def test_amaranth(n, stages, count):
    assert simulate(SystolicArray(n=n, stages=stages), tiles, seed=seed(), n=n, stages=stages, count=count) >= count


@pytest.mark.parametrize("n, stages, count", [(4, 1, 2), *slow((4, 1, 8), (4, 3, 5), (4, 8, 5))])
def test_two_words_of_weights_a_cycle(n, stages, count):
    sizes = {"n": n, "stages": stages, "weight_rows": 2}
    assert simulate(SystolicArray(**sizes), tiles, seed=seed(), **sizes, count=count) >= count


@functools.cache
def verilog(n, stages, weight_rows):
    return component_to_verilog(SystolicArray(n=n, stages=stages, weight_rows=weight_rows), name="systolic_array")


def run(simulator, n, stages, count, weight_rows=1, **options):
    simulation = runner.Simulation(
        simulator=simulator, verilog=verilog(n, stages, weight_rows), top="systolic_array", no_inline=("tpu_cell",), **options
    )
    return simulation.run(
        "amaranth_tpu.sim.benches.bench_systolic_array",
        testcase="random_tiles",
        seed=seed(),
        timeout=300,
        arguments={"n": n, "stages": stages, "count": count, "weight_rows": weight_rows},
    )


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_verilog(simulator):
    assert run(simulator, 2, 3, 60, quick=True)["compared"] > 60
    assert run(simulator, 4, 3, 20, weight_rows=2, quick=True)["compared"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("n, stages, weight_rows", [(4, 3, 1), (8, 1, 1), (8, 3, 1), (8, 8, 1), (16, 3, 1), (16, 3, 2)])
def test_volume(n, stages, weight_rows):
    assert run("verilator", n, stages, 500, weight_rows)["compared"] > 500

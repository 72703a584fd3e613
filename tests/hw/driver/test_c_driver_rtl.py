"""Tests of the C driver with the RTL in Verilator, covering result bits, and faults of a memory that responds with errors or not
at all."""

import numpy as np
import pytest

from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from amaranth_tpu.sim.rtl.cpp_program import cpp_program
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from c_driver import ERRORS, SOURCES, host_of, objects_of
from command import captured
from core_runs import FULL, MEMORY
from stage_graphs import GivenStage, GivenTerm, linked

pytestmark = pytest.mark.slow
BENCH = SOURCES.parents[1] / "tests" / "support" / "c_driver_bench.cpp"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Builds the simulation of driver and core. Returns the program and a folder with the image and test vectors of a network
    with windows, pooling and tanh."""
    rng, folder = np.random.default_rng(11), tmp_path_factory.mktemp("rtl")
    conv = GivenTerm("x", rng.normal(size=(3, 3, 1, 3)).astype(bfloat16))
    point = GivenTerm("h", rng.normal(size=(1, 1, 3, 3)).astype(bfloat16))
    first = GivenStage("one", "h", (conv,), (4, 4), pool=Pool((2, 2), (2, 2), (2, 2)), function=Function("tanh"))
    graph = linked("features", Tensor("x", 1, 6, 6), (first, GivenStage("two", "y", (point,), (2, 2))))
    host = host_of(graph, FULL, rng.normal(size=(2, 36)).astype(np.float32), folder)
    for name, data in host.bundle.files.items():
        (folder / name).write_bytes(data)
    simulation = Simulation.of_core(verilog_of(FULL), FULL, simulator="verilator", memory_bytes=MEMORY, quick=True)
    source = BENCH.read_text().replace("DRIVER", str(SOURCES))
    return cpp_program(simulation, source, objects=objects_of(folder)), folder


def run(bench, *plusargs, limit=1000):
    """Runs the simulation. Returns the driver's calls with their return values, in order, and the results' bytes."""
    program, folder = bench
    done = captured([program, folder, str(limit), *plusargs], timeout=100)
    assert done.returncode == 0, done.stderr
    steps = [line.split() for line in done.stdout.splitlines()]
    return [(step, int(value)) for step, value in steps], (folder / "found.bin").read_bytes()


PREPARED = [(step, 0) for step in ("open", "check", "image", "place", "timeout")]


@pytest.mark.parametrize("memory, limit", [(["+latency=32"], 1000), (["+latency=7", "+pause_percent=40"], 2)])
def test_bits(bench, memory, limit):
    steps, found = run(bench, *memory, limit=limit)
    assert found == (bench[1] / "results.bin").read_bytes() and any(found)
    figures = dict(steps)
    assert figures["cycles"] == figures["sum"] > 100 and figures["protocol"] == 0
    ran = [("run", 0)] if limit > 2 else [("run", ERRORS["LIMIT"]), ("wait", 0)]
    assert steps[:-3] == PREPARED + 2 * [*ran, ("quiet", 1)]


def test_errors_of_the_memory(bench):
    steps, _ = run(bench, "+latency=7", "+error_address=8000")
    assert steps[:-3] == PREPARED + 2 * [("run", ERRORS["BUS_READ"]), ("quiet", 1), ("recover", 0)]


def test_dead_memory(bench):
    steps, _ = run(bench, "+latency=7", "+hang_after=5")
    dead = ERRORS["DEAD_MEMORY"]
    assert steps[len(PREPARED) : len(PREPARED) + 3] == [("run", dead), ("quiet", 0), ("recover", dead)]

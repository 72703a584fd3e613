"""Tests of the core with the AXI memory and the AXI4-Lite master of cocotbext, so that independent code checks its buses."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from seeds import seed
from suites import slow

CONFIG = Config(n=4, unified_buffer_depth=32, accumulator_depth=16, bias_depth=4, weight_fifo_depth=8, **PLAIN)


@pytest.mark.parametrize("pause", [*slow(0), 0.3])
def test_network(tmp_path, pause):
    rng = np.random.default_rng(seed())

    def layer(name, inputs, outputs, function, bias):
        return (
            name,
            rng.normal(size=(inputs, outputs)).astype(bfloat16),
            rng.normal(size=outputs).astype(np.float32) if bias else None,
            function,
        )

    network = dense_chain("random", (layer("a", 13, 9, "relu", True), layer("b", 9, 6, "none", False)))
    samples = rng.normal(size=(5, 13)).astype(bfloat16)
    program = compile_network(network, CONFIG, len(samples))
    image, regions = bytearray(rng.bytes(1 << 14)), {}
    parts = {"MODEL": program.model, "INPUT": program.pack_input(samples), "OUTPUT": None, "SCRATCH": None}
    sizes = {"OUTPUT": program.sizes[Region.OUTPUT], "SCRATCH": program.sizes[Region.SCRATCH]}
    base = 4096 - 64  # a page boundary in the middle of the program
    for name, data in parts.items():
        size = len(data) if data is not None else sizes[name]
        regions[name] = [base, size]
        if data is not None:
            image[base : base + size] = data
        base += -(-size // 64) * 64 + 64
    (tmp_path / "before").write_bytes(image)

    simulation = Simulation(simulator="icarus", verilog=verilog_of(CONFIG), top="tpu")
    result = simulation.run(
        "amaranth_tpu.sim.benches.bench_cocotbext",
        timeout=120,
        seed=seed() & 0x7FFFFFFF,
        arguments={"regions": regions, "pause": pause, "image": str(tmp_path / "before"), "output": str(tmp_path / "after")},
    )
    after = (tmp_path / "after").read_bytes()
    base, size = regions["OUTPUT"]
    found = program.unpack_output(after[base : base + size])
    assert (found.view(np.uint32) == run_network(network, samples).view(np.uint32)).all()
    image[base : base + size] = after[base : base + size]
    base, size = regions["SCRATCH"]
    image[base : base + size] = after[base : base + size]
    assert image == after, "written outside OUTPUT and SCRATCH"
    assert result["identity"]["n"] == CONFIG.n
    assert result["counters"]["cycles"] == sum(
        value for name, value in result["counters"].items() if name == "busy" or name.startswith("stall_")
    )

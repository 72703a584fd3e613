"""Tests of whole boards, in which the real driver exchanges bits with the top-level Verilog over a simulated serial line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amaranth_tpu.sim as sim
from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PLAIN, PRESETS, Config
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.rtl.runner import Simulation
from command import SHIPPED, write_model
from seeds import seed

SMALL = Config(n=2, cell_stages=5, unified_buffer_depth=256, accumulator_depth=64, **PLAIN)
#: Four cycles per bit, and short timeouts, because a second of board time takes long to simulate.
FAST = {"baud": 20_000_000, "silence": 1e-4}


def simulation(board, config, simulator, quick=False):
    return Simulation(
        simulator=simulator,
        quick=quick,
        verilog=board.to_verilog(config),
        sources=(Path(sim.__file__).parent / "rtl" / "ehxplll.v",),
        top="top",
        public=("clk25", "button", "uart_rx", "uart_tx", "led_*"),
        no_inline=("tpu_cell", "tpu_row"),
    )


def line(board, **changes):
    return {"clock": round(board.clock_mhz * 1e6), "baud": board.baud, "timeout": 1e-3, "silence": 2e-4, **changes}


def run(board, config, simulator, model, samples, folder, *, batch=None, timeout=300, quick=False):
    np.save(folder / "samples.npy", samples.astype(np.float32))
    result = simulation(board, config, simulator, quick).run(
        "amaranth_tpu.sim.benches.bench_board",
        testcase="run",
        timeout=timeout,
        seed=seed(),
        arguments={"line": line(board), "network": str(model), "samples": str(folder / "samples.npy"), "batch": batch},
    )
    expected = run_network(load_network(model), samples.astype(bfloat16))
    assert result["fault"] is None and result["mismatched_bits"] == 0
    assert np.array_equal(np.array(result["logits"], np.float32).view(np.uint32), expected.view(np.uint32))
    assert result["cycles"] == sum(batch["cycles"] for batch in result["batches"])
    return result


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_small_network(tmp_path, simulator, rng):
    """A small network runs three samples in two batches of two, the second one incomplete, and its logits match the golden
    model's results."""
    board = replace(BOARDS["ulx3s-25f"], clock_mhz=80, memory=1 << 14, **FAST)
    samples = rng.standard_normal((3, 16))
    result = run(board, SMALL, simulator, write_model(tmp_path / "m.onnx"), samples, tmp_path, batch=2, quick=True)
    assert (result["n"], result["memory"], len(result["batches"])) == (2, 1 << 14, 2)


@pytest.mark.slow
def test_mnist(tmp_path):
    """The shipped MNIST model runs on the configuration of the largest board and classifies over 90 % of 16 digits correctly."""
    board = replace(BOARDS["ulx3s-85f"], clock_mhz=80, **FAST)
    network = load_network(SHIPPED)
    pixels, labels = load_digits()
    samples = preprocess(pixels[:16], network.preprocess).astype(bfloat16)
    result = run(board, PRESETS[board.preset], "verilator", SHIPPED, samples, tmp_path, timeout=1800)
    assert result["n"] == 8 and (np.array(result["logits"]).argmax(axis=1) == labels[:16]).mean() > 0.9


@pytest.mark.slow
def test_faults():
    """The board's driver reports each of 11 line faults, which corrupt frames, drop bytes or silence either direction."""
    board = replace(BOARDS["ulx3s-25f"], clock_mhz=80, memory=1 << 14, **FAST)
    ended = simulation(board, SMALL, "verilator").run(
        "amaranth_tpu.sim.benches.bench_board", testcase="faults", timeout=600, seed=seed(), arguments={"line": line(board)}
    )
    print(ended)
    assert len(ended) == 11

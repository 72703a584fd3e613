"""Tests of whole boards, in which the real driver exchanges bits with the top-level Verilog over a simulated serial line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amaranth_tpu.sim as sim
from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.boards.sdram_chip import SDRAM_32M, SdramChip
from amaranth_tpu.hw.config import PLAIN, PRESETS, Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.models.shipped import SHIPPED as SHIPPED_BY_NAME
from amaranth_tpu.sim.rtl.host_memory import parse_memory
from amaranth_tpu.sim.rtl.memory_images import write_image
from amaranth_tpu.sim.rtl.native_cells import with_native_cells
from amaranth_tpu.sim.rtl.runner import Simulation
from command import SHIPPED, write_model
from seeds import seed

SMALL = Config(n=2, cell_stages=5, unified_buffer_depth=256, accumulator_depth=64, **PLAIN)
#: Four cycles per bit, and short timeouts, because a second of board time takes long to simulate.
FAST = {"baud": 20_000_000, "silence": 1e-4}


def simulation(board, config, simulator, quick=False, cells="rtl"):
    rtl, verilog, chip = Path(sim.__file__).parent / "rtl", board.to_verilog(config), board.memory
    top, files, parameters = "top", ["ehxplll.v"], {}
    if isinstance(chip, SdramChip):
        top, files = "sdram_board", [*files, "ecp5_pins.v", "sdram_chip.sv", "sdram_board.sv"]
        parameters = {"ROW_BITS": chip.row_bits, "PERIOD": round(1e6 / board.clock_mhz), "POWER_UP": round(chip.power_up)}
    return Simulation(
        simulator=simulator,
        quick=quick,
        verilog=with_native_cells(verilog, config.cell_stages) if cells == "native" else verilog,
        sources=tuple(rtl / file for file in files),
        top=top,
        parameters=parameters,
        public=("clk25", "button", "uart_rx", "uart_tx", "led_*", "errors"),
        no_inline=("tpu_cell", "tpu_row"),
    )


def line(board, **changes):
    return {"clock": round(board.clock_mhz * 1e6), "baud": board.baud, "timeout": 1e-3, "silence": 2e-4, **changes}


def run(board, config, simulator, model, samples, folder, *, batch=None, timeout=300, quick=False, program=None):
    """Runs a model; a `program` is in the memory beforehand, and native cells save time."""
    np.save(folder / "samples.npy", samples.astype(np.float32))
    job = {"line": line(board), "network": str(model), "samples": str(folder / "samples.npy"), "batch": batch}
    if program:
        write_image(folder / "sdram.hex", program.model, 2)
    result = simulation(board, config, simulator, quick, "native" if program else "rtl").run(
        "amaranth_tpu.sim.benches.bench_board",
        testcase="run",
        timeout=timeout,
        seed=seed(),
        arguments=job | {"preloaded": bool(program)},
        plusargs={"sdram": folder / "sdram.hex"} if program else {},
    )
    expected = run_network(load_network(model), samples.astype(bfloat16))
    assert result["fault"] is None and result["mismatched_bits"] == 0 and result["violations"] == 0
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
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_sdram(tmp_path, simulator, rng):
    """The same with an SDRAM chip, which sees no violation. Simulated rows are few, as Icarus takes long for all."""
    chip = replace(SDRAM_32M, power_up=2_000, **({"row_bits": 4} if simulator == "icarus" else {}))
    board = replace(BOARDS["ulx3s-85f"], clock_mhz=80, memory=chip, **FAST)
    samples = rng.standard_normal((3, 16))
    result = run(board, SMALL, simulator, write_model(tmp_path / "m.onnx"), samples, tmp_path, batch=2, quick=True)
    assert (result["n"], result["memory"], len(result["batches"])) == (2, chip.size, 2)


@pytest.mark.slow
@pytest.mark.search  # the board's driver searches, too
def test_cycles_with_sdram(tmp_path):
    """A network for which block RAM is too small takes at most 1.2 times the cycles that `--memory` predicts."""
    board = replace(BOARDS["ulx3s-85f"], **FAST | {"baud": 22_500_000})
    config, network = PRESETS[board.preset], load_network(SHIPPED_BY_NAME["a"])
    samples = preprocess(load_digits()[0][:1], network.preprocess).astype(bfloat16)
    program = compile_network(network, config, 1)
    result = run(board, config, "verilator", SHIPPED_BY_NAME["a"], samples, tmp_path, batch=1, timeout=1800, program=program)
    predicted = program.with_host(parse_memory(f"sdram-90x16@{board.clock_mhz}")).predicted_cycles
    assert result["cycles"] / 1.2 < predicted < 1.2 * result["cycles"], (predicted, result["cycles"])


@pytest.mark.slow
def test_mnist(tmp_path):
    """The shipped MNIST model runs on the configuration of the largest board and classifies over 90 % of 16 digits correctly."""
    board = replace(BOARDS["ulx3s-85f"], clock_mhz=80, memory=1 << 18, **FAST)
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

"""Tests of a core's waveforms, covering only named signals, opcodes and states as text, and a save file whose names exist."""

import re
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.host.host_image import core_simulation
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.rtl.enumerations import enumerations
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.rtl.wave_view import WaveView, move_waves
from onnx_models import Builder, weights

CONFIG = Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=4, **PLAIN)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Runs a network in Icarus Verilog. Returns `(program, its result, the VCD trace)`."""
    folder = tmp_path_factory.mktemp("run")
    rng, build = np.random.default_rng(3), Builder(["batch", 5])
    build("Gemm", weights(rng, 5, 4), np.zeros(4, np.float32))
    build("Relu")
    build("Gemm", weights(rng, 4, 3))
    network = load_network(build.save(folder))
    program = compile_network(network, CONFIG, 3)
    samples = rng.normal(size=(3, 5)).astype(np.float32)
    result = run_samples(network, CONFIG, samples, program=program, batch=3, simulator="icarus", waves="vcd")
    move_waves(result.waves, folder / "w.vcd")
    assert not Path(result.waves).parent.exists()
    return program, result, folder / "w.vcd"


def signals_of(text):
    """Returns {full name with bits in GTKWave's notation: short name} of each signal in a VCD file."""
    found, path = {}, []
    for scope, up, width, short, name in re.findall(r"\$scope \w+ (\S+)|\$(upscope)|\$var \w+ (\d+) (\S+) (\S+)", text):
        if scope:
            path.append(scope)
        elif up:
            path.pop()
        else:
            found[".".join([*path, name]) + ("" if width == "1" else f"[{int(width) - 1}:0]")] = short
    return found


def words_of(text, short):
    values = [int(bits, 2) for bits in re.findall(rf"^b([01]+) {re.escape(short)}$", text, re.MULTILINE)]
    return [word for value in values if (word := value.to_bytes(32, "big").strip(b"\0").decode())]


@pytest.mark.slow
def test_trace(recorded):
    program, result, trace = recorded
    text = trace.read_text()
    signals = signals_of(text)
    core = [name for name in signals if name.startswith("testbench.core.")]
    assert len(core) > 500 and not [name for name in core if name.rpartition(".")[2].startswith(("$", "\\$"))]

    texts = {
        name.partition("[")[0].removeprefix("testbench.texts."): short for name, short in signals.items() if ".texts." in name
    }
    opcodes = [*(op.opcode for op in program.ops), Opcode.HALT]
    assert words_of(text, texts["dispatch"]) == [opcode.name for opcode in opcodes]
    assert set(words_of(text, texts["load"])) == {"LOAD", "LOAD_BIAS"} & {opcode.name for opcode in opcodes}
    assert words_of(text, texts["store"])[:1] == ["STORE"] and words_of(text, texts["run_state"]) == ["IDLE", "RUN", "IDLE"]
    assert set(words_of(text, texts["array"])) == {"busy", *(name for name, cycles in result.stalls.items() if cycles)}
    decoded = words_of(text, texts["decoder_decode_state"])
    assert "END" in decoded and decoded.count("VERDICT") == len(opcodes)


@pytest.mark.slow
def test_save_file(recorded):
    _, _, trace = recorded
    signals = signals_of(trace.read_text())
    lines = trace.with_suffix(".gtkw").read_text().splitlines()
    assert lines[0] == f'[dumpfile] "{trace}"'
    named = [line for line in lines if line.startswith("testbench.")]
    assert len(named) > 20 and set(named) <= set(signals)


@pytest.mark.slow
def test_save_file_shows_cells(recorded):
    """GTKWave's save file shows operand, weights and sums of the first and the last cell, all of which change in the run."""
    _, _, trace = recorded
    text = trace.read_text()
    signals, lines = signals_of(text), trace.with_suffix(".gtkw").read_text().splitlines()
    for title, place in (("first cell", "row_0.cell_0"), ("last cell", "row_1.cell_1")):
        group = lines[lines.index(f"-{title}") + 1 : lines.index(f"-{title}", lines.index(f"-{title}") + 1)]
        shown = [line for line in group if line.startswith("testbench.")]
        names = ["x_i[15:0]", "shadow[15:0]", "active[15:0]", "sum_i[31:0]", "sum_o[31:0]"]
        assert shown == [f"testbench.core.array.{place}.{name}" for name in names]
        for name in shown:
            assert len(set(re.findall(rf"^b([01]+) {re.escape(signals[name])}$", text, re.MULTILINE))) > 2, name


@pytest.mark.slow
def test_surfer_commands(recorded):
    """The commands for Surfer show the signals of GTKWave's save file in the same order, each with a format."""
    _, _, trace = recorded
    lines = trace.with_suffix(".sucl").read_text().splitlines()
    saved = [line.partition("[")[0] for line in trace.with_suffix(".gtkw").read_text().splitlines() if line.startswith("testb")]
    added = [number for number, line in enumerate(lines) if line.startswith("variable_add ")]
    assert [lines[number].split()[1] for number in added] == saved and lines[-1] == "zoom_fit"
    assert {lines[number + 1] for number in added} == {f"item_set_format {name}" for name in ("Hexadecimal", "Bits", "ASCII")}
    assert "ASCII" in lines[lines.index("variable_add testbench.texts.dispatch") + 1]


def test_names_of_states():
    names = enumerations(CONFIG)
    states = "FETCH CHECK COMPARE EXTENTS FAULT VERDICT END".split()
    assert list(names["tpu_decoder", "decode_state"].values()) == states
    assert names["tpu_run", "state"] == {0: "IDLE", 1: "QUIET", 2: "RUN"}


def test_verilator_leaves_the_anonymous_out():
    simulation = core_simulation(CONFIG, simulator="verilator", waves="vcd")
    lines = simulation.verilog.split("\n")
    hidden = {
        number
        for first, last in re.findall(r'tracing_off -file "\*design.sv" -lines (\d+)-(\d+)', simulation._control)
        for number in range(int(first), int(last) + 1)
    }
    anonymous = {number for number, line in enumerate(lines, 1) if re.match(r"\s*(wire|reg)\b[^;]*\\\$", line)}
    assert hidden == anonymous and len(hidden) > 100
    assert simulation.verilog.startswith(verilog_of(CONFIG)) and not core_simulation(CONFIG, simulator="verilator").view
    assert WaveView(verilog_of(CONFIG), CONFIG).letters["dispatch"] == len("LOAD_WEIGHTS")

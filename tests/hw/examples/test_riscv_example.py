"""Tests of the network that runs on the RISC-V CPU, and of the example's errors (`hw/examples/riscv`). The slow suite simulates
the whole system."""

import ctypes
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.hw.examples.riscv import __main__ as example
from amaranth_tpu.hw.examples.riscv import firmware, simulation
from amaranth_tpu.hw.examples.riscv.cpu_network import CpuNetwork, dense_layers
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.scripts.cli.command_line import RunFailed
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.models.shipped import SHIPPED
from command import captured

HERE = Path(simulation.__file__).resolve().parent
FLAGS = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffreestanding"]


def random_chain(rng, widths):
    layers = [
        (
            f"layer{index}",
            (rng.standard_normal((inputs, outputs)) / inputs**0.5).astype(bfloat16),
            rng.standard_normal(outputs).astype(np.float32),
            "relu" if index + 2 < len(widths) else "none",
        )
        for index, (inputs, outputs) in enumerate(zip(widths, widths[1:]))
    ]
    return dense_chain("random", layers)


def on_this_cpu(graph, samples, folder):
    """Compiles the firmware's `cpu_network.c` for this machine and runs it. Returns `(binary32 results, integer results, expected
    integers)`."""
    network = CpuNetwork(graph, samples)
    files = network.files(samples, len(samples)) | {"samples.bin": samples.tobytes()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    sources = [HERE / "firmware" / name for name in ("cpu_network.c", "data.S")]
    include = [f"-I{place}" for place in (folder, HERE / "firmware", HERE.parents[1] / "driver")]
    command = ["gcc", *FLAGS, *include, f"-Wa,-I,{folder}", "-shared", "-fPIC", *sources, "-o", folder / "cpu.so"]
    done = captured(command)
    assert done.returncode == 0, done.stderr
    library, size = ctypes.CDLL(str(folder / "cpu.so")), graph.output_size
    small = np.ascontiguousarray(network.quantise(samples))
    binary32, integers = np.zeros((len(samples), size), np.float32), np.zeros((len(samples), size), np.int32)
    for index in range(len(samples)):
        for run, source, result in ((library.run_binary32, samples, binary32), (library.run_integer, small, integers)):
            run(*(array[index].ctypes.data_as(ctypes.c_void_p) for array in (source, result)))
    return binary32, integers, network.run_integer(small)


def test_network_of_the_cpu(rng, tmp_path):
    """The firmware's binary32 results match the golden model bit for bit. Its integer results match numpy. Their correlation
    with the golden model's results is over 0.99."""
    graph = random_chain(rng, [37, 50, 21, 9])
    samples = rng.standard_normal((12, 37)).astype(np.float32)
    samples[0] = (samples[0].view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)  # halfway between two bfloat16 values
    binary32, integers, expected = on_this_cpu(graph, samples, tmp_path)
    golden = run_network(graph, samples)
    assert (binary32.view(np.uint32) == golden.view(np.uint32)).all()
    assert (integers == expected).all() and integers.any(axis=0).all()
    assert np.corrcoef(integers.ravel(), golden.ravel())[0, 1] > 0.99


def test_order_of_outputs(rng):
    graph = random_chain(rng, [8, 5])
    turned = replace(graph, output_order=rng.permutation(5))
    sample = rng.standard_normal((1, 8)).astype(bfloat16)
    [layer] = dense_layers(turned)
    assert np.allclose(sample.astype(np.float32) @ layer.weights.T + layer.bias, run_network(turned, sample), atol=1e-5)


def test_other_networks_are_refused(rng):
    """The CPU's part of the example refuses networks with a tanh, with two terms per stage, or with reordered inputs, which
    would change the bits of the sums."""
    graph = random_chain(rng, [8, 5])
    [stage] = graph.stages
    for other in (
        replace(graph, stages=(replace(stage, function=Function("tanh")),)),
        replace(graph, stages=(replace(stage, terms=2 * stage.terms),)),
        replace(graph, input_order=np.arange(8)[::-1]),
    ):
        with pytest.raises(ValueError, match="the CPU's part of the example"):
            dense_layers(other)
    assert len(dense_layers(replace(graph, input_order=np.arange(8)))) == 1


LINES = [
    "core of digit 0: 1; results bf800000 40000000",
    "the core took 5 cycles for all of them, 64 bytes moved; with the driver 7, to pack them 9",
    "CPU, integer, of digit 0: 0 in 11 cycles, 12 bytes moved; results 00000007 fffffffe",
    "CPU, binary32, of digit 0: 1 in 13 cycles, 14 bytes moved; results bf800000 40000000",
]
GOLDEN, INTEGERS = np.array([[-1, 2]], np.float32), np.array([[7, -2]], np.int32)


def test_what_the_firmware_says():
    found = example.read_lines(LINES, GOLDEN, INTEGERS)
    assert found["core"] == {
        "answers": [1],
        "mismatched_bits": [0],
        "cycles": 5,
        "bytes": 64,
        "driver_cycles": 7,
        "pack_cycles": 9,
    }
    assert found["integer"] == {"answers": [0], "mismatched_bits": [0], "cycles": [11], "bytes": [12]}
    assert found["binary32"] == {"answers": [1], "mismatched_bits": [0], "cycles": [13], "bytes": [14]}
    wrong = example.read_lines([LINES[0].replace("40000000", "40000003")], GOLDEN, INTEGERS)
    assert wrong["core"]["mismatched_bits"] == [2]


@pytest.mark.parametrize("line", [LINES[0].replace("0: 1", "0: 0"), LINES[0].replace("digit 0", "digit 1"), "tpu_run: no core"])
def test_what_the_firmware_should_not_say(line):
    with pytest.raises(RunFailed):
        example.read_lines([line], GOLDEN, INTEGERS)


def test_missing_tools_are_reported(monkeypatch):
    """Each missing tool is reported in one line that ends with the command that installs it."""
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(ToolError, match="apt-get install gcc-riscv64-unknown-elf$"):
        firmware.find_compiler()
    monkeypatch.setattr(simulation, "_PACKAGE", "pythondata_cpu_nobody")
    with pytest.raises(ToolError, match="pip install pythondata-cpu-nobody$"):
        simulation.cpu_verilog()


def test_a_bus_that_is_too_wide():
    with pytest.raises(ToolError, match="take --n 16 or less"):
        simulation.build_system(Config(n=32))


def bundle_in(folder, graph, n, samples, **options):
    """Writes the files of a network, compiled for a core of preset `plain`, into a folder, and returns it."""
    folder.mkdir()
    program = compile_network(graph, from_preset("plain", n=n), len(samples))
    for name, data in make_bundle(graph, program, samples, **options).files.items():
        (folder / name).write_bytes(data)
    return folder


def test_firmware_on_this_computer(rng, tmp_path):
    """Both firmwares run unchanged as programs for this computer, with the C model behind the driver's port: no result differs
    from the golden model, and each provoked error has its number."""
    graph, samples = random_chain(rng, [20, 12, 5]), rng.standard_normal((3, 20)).astype(np.float32)
    net = bundle_in(tmp_path / "net", graph, 4, samples)
    bundle_in(tmp_path / "other", graph, 8, samples, name="other")
    cpu = CpuNetwork(graph, samples)
    for name, data in cpu.files(samples, len(samples)).items():
        (tmp_path / name).write_bytes(data)
    lines, status = firmware.run_on_pc(firmware.build_for_pc(tmp_path, example.SOURCES["digits"], net))
    golden = np.fromfile(net / "results.bin", "<f4").reshape(len(samples), -1)
    found = example.read_lines(lines, golden, cpu.run_integer(cpu.quantise(samples)))
    assert status == 0 and [one["mismatched_bits"] for one in found.values()] == [[0, 0, 0]] * 3
    lines, status = firmware.run_on_pc(firmware.build_for_pc(tmp_path, example.SOURCES["errors"], net))
    assert status == 0 and not example._bits(example._words(lines[-1].removeprefix("results")), golden.ravel())
    numbers = {int(line.split()[0]) for line in lines if "after" in line.split()[:3]}
    assert numbers == {0, 1, 3, 4, 6, 7, 8, 9, 10, 11, 33, 34, 36, 37, 38}


def needs_riscv():
    pytest.importorskip("pythondata_cpu_vexriscv", reason="the CPU is in the extra `test`")
    if shutil.which("riscv64-unknown-elf-gcc") is None:
        pytest.skip("no compiler: apt-get install gcc-riscv64-unknown-elf")


def run(*words):
    needs_riscv()
    done = captured([sys.executable, "-m", "amaranth_tpu.hw.examples.riscv", *words, "--json"], timeout=3000)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_digits_on_core_and_cpu():
    """Runs the 784-10 digit network on core and CPU: no bit differs from the golden model, and the core needs less than a tenth
    of the CPU's cycles."""
    figures = run("--images", "2", "--cpu-images", "1")
    assert {who: len(figures[who]["answers"]) for who in ("core", "integer", "binary32")} == dict(core=2, integer=1, binary32=1)
    assert figures["core"]["answers"][0] == figures["binary32"]["answers"][0] == figures["labels"][0]
    assert figures["core"]["mismatched_bits"] == [0, 0] and figures["binary32"]["mismatched_bits"] == [0]
    assert 10 * figures["core"]["cycles"] < figures["integer"]["cycles"][0] < figures["binary32"]["cycles"][0] / 10
    assert figures["core"]["bytes"] >= 2 * 7840


@pytest.mark.slow
def test_error_numbers_are_the_readmes():
    """The error numbers in the README match the firmware. The firmware itself provokes the errors and checks the numbers."""
    figures = run("--errors")
    assert not figures["wrong"] and not figures["mismatched_bits"]
    found, took = zip(*((int(line.split()[0]), int(line.split()[2])) for line in figures["lines"] if "after" in line.split()[:3]))
    assert max(took) < 200_000 and not any("WRONG" in line for line in figures["lines"])
    assert {1, 3, 4, 6, 7, 8, 9, 10, 11, 33, 34, 36, 37, 38} == {*found} - {0}


@pytest.mark.slow
def test_a_wrong_weight_is_found(tmp_path):
    """One wrong byte in the core's program or in the CPU's weights is reported, at the check that covers it."""
    needs_riscv()
    config, network = from_preset("plain", n=4), load_network(SHIPPED["d"])
    samples = np.ones((1, 784), np.float32)
    cpu = CpuNetwork(network, samples)
    files = cpu.files(samples, 1)
    bundle, _, run_firmware = example._prepare(tmp_path, "d", config, samples, files, "digits", pc=False)
    program, image = run_firmware.args[:2]
    golden = np.fromfile(bundle / "results.bin", "<f4").reshape(1, -1)
    seen = {}
    for what, data in (("model", (bundle / "model.bin").read_bytes()), ("weights", files["weights8.bin"])):
        place = image.index(data) + len(data) // 2
        changed = bytearray(image)
        changed[place] ^= 0x40
        lines, status = simulation.run_system(program, bytes(changed), config, tmp_path, latency=8, limit=10_000_000)
        seen[what] = status, lines
    assert seen["model"][0] == 5 and "tpu_check_image" in seen["model"][1][-1]  # TPU_ERROR_IMAGE
    by_cpu = {match[1]: match for match in map(example._CPU.fullmatch, seen["weights"][1]) if match}
    expected = {"integer": cpu.run_integer(cpu.quantise(samples)), "binary32": golden}
    wrong = {who: example._bits(example._words(match[6]), expected[who][0]) for who, match in by_cpu.items()}
    assert wrong["integer"] and not wrong["binary32"]

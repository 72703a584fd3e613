# amaranth: UnusedElaboratable=no
"""Tests of native cells: the C functions against the golden model and TestFloat, the replaced modules for every number of stages,
and runs of networks and training steps."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.cell_stages import STAGES
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.scripts import testfloat
from amaranth_tpu.scripts.native_cells import compare, random_pairs
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl import native_cells
from amaranth_tpu.sim.rtl.native_cells import NativeArithmetic, check_cells, native_source, with_native_cells
from amaranth_tpu.sim.rtl.streams import StreamedBlock
from command import refused, write_model
from suites import slow

#: Alterations of the rounding, and of the flushing, in `native_cells.h` for x86-64.
ALTERED = {"rounding towards zero": ("0x8040", "0xE040"), "subnormal operands": ("0x8040", "0x8000")}


@pytest.fixture(scope="module")
def arithmetic():
    return NativeArithmetic()


# ---- the C functions


def test_functions_equal_the_golden_model(arithmetic, rng):
    assert compare(arithmetic, 200_000, rng) == (0, "")


def test_pairs_cover_all_bfloat16_numbers(rng):
    """The last of the 2^32 pairs of the multiplier follows the first, so that they form one cycle through all pairs."""
    step = [np.uint32(x) << np.uint32(16) | w for x, w in zip(*random_pairs(rng, 16, 0, 2))]
    last = [np.uint32(x) << np.uint32(16) | w for x, w in zip(*random_pairs(rng, 16, (1 << 32) - 1, 1))]
    stride = int(step[1]) - int(step[0])
    assert stride % 2 and (int(last[0]) + stride - int(step[0])) % (1 << 32) == 0


@pytest.mark.skipif("x86" not in os.uname().machine, reason="alters the control register of x86-64")
@pytest.mark.parametrize("change", ["rounding towards zero", *slow("subnormal operands")])
def test_altered_function_is_noticed(change, rng):
    altered = native_source().replace(*ALTERED[change])
    assert altered != native_source()
    wrong, text = compare(NativeArithmetic(altered), 1000, rng)
    assert wrong and "gave" in text


def test_every_nan_becomes_the_canonical_one(arithmetic):
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF], np.uint32)
    one = np.full(len(nans), 0x3F800000, np.uint32)
    assert (arithmetic.add(nans, one) == golden.NAN).all() and (arithmetic.add(one, nans) == golden.NAN).all()
    infinity = np.array([0x7F800000, 0xFF800000], np.uint32)
    assert (arithmetic.add(infinity, infinity[::-1]) == golden.NAN).all()
    assert (arithmetic.multiply(infinity >> 16, [0x0000, 0x8000]) == golden.NAN).all()


@pytest.mark.parametrize("line, passed", [("80000000 80000000 80000000", 1), ("80000000 80000000 00000000", 0)])
def test_vectors_of_testfloat_are_read(arithmetic, tmp_path, line, passed):
    (tmp_path / "f32_add.txt").write_text(f"{line} 00\n")
    result = testfloat.check_file(tmp_path / "f32_add.txt", arithmetic=arithmetic)
    assert (result.passed, result.failed) == (passed, 1 - passed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f32_add_level1.gz", "f32_mul_level1.gz"])
def test_testfloat(arithmetic, name):
    folder = os.environ.get("TPU_TESTFLOAT")
    if not folder:
        pytest.skip("set TPU_TESTFLOAT to the folder of Berkeley TestFloat's vectors")
    result = testfloat.check_file(Path(folder) / name, arithmetic=arithmetic)
    assert result.failed == 0 and result.passed + result.skipped == 46464, result


@pytest.mark.slow
def test_functions_on_arm64_equal_the_golden_model(rng):
    """The program for ARM64 gives the golden model's bits in an emulator."""
    if not shutil.which("aarch64-linux-gnu-g++") or not shutil.which("qemu-aarch64"):
        pytest.skip("apt-get install g++-aarch64-linux-gnu qemu-user")
    arm = NativeArithmetic(compiler=("aarch64-linux-gnu-g++", "-static"), emulator=("qemu-aarch64",))
    assert compare(arm, 1 << 22, rng) == (0, "")


# ---- the modules


def _native(stages):
    return lambda verilog: with_native_cells(verilog, stages, module="top")


@pytest.mark.slow
def test_sums_of_a_cell_are_the_golden_models(rng):
    """A native cell of 3 stages adds the products of one weight to its sums, three cycles after the operands."""
    cycles, weight = 5000, np.uint32(0x3FC1)
    x, sums = random_pairs(rng, 16, 0, cycles)[0], random_pairs(rng, 32, 0, cycles)[1]
    first = np.arange(cycles)
    found = StreamedBlock(Cell(stages=3), _native(3)).run(
        x_i=x, w_i=np.full(cycles, weight), mark_i=first == 0, switch_i=first == 1, sum_i=sums
    )["sum_o"]
    expected = golden.multiply_accumulate(sums[2:], x[:-2], weight)  # the sum enters two cycles after its operand
    assert (found[6:] == expected[3:-1]).all() and len(set(found)) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("stages", STAGES)
def test_cell_equals_the_rtl_in_every_cycle(stages, rng):
    """A native cell has the outputs of the RTL cell in each cycle, for any operands, marks and switches."""
    cycles = 100_000
    columns = {
        "x_i": rng.integers(0, 1 << 16, cycles),
        "w_i": rng.integers(0, 1 << 16, cycles),
        "mark_i": rng.integers(0, 2, cycles),
        "switch_i": rng.integers(0, 2, cycles),
        "sum_i": random_pairs(rng, 32, 0, cycles)[1],
    }
    rtl, native = StreamedBlock(Cell(stages=stages)), StreamedBlock(Cell(stages=stages), _native(stages))
    expected, found = rtl.run(**columns), native.run(**columns)
    for name, values in expected.items():
        assert (found[name][stages:] == values[stages:]).all(), name


def test_design_without_cells_is_refused():
    with pytest.raises(ValueError, match="0 modules match"):
        with_native_cells("module top ();\nendmodule\n", 3)


# ---- hosts, simulators, options


def test_hosts_and_simulators_that_cannot_are_refused(monkeypatch):
    check_cells("rtl", "icarus")
    with pytest.raises(ToolError, match="icarus cannot call; use verilator"):
        check_cells("native", "icarus")
    for machine in ("x86_64", "aarch64", "arm64", "AMD64"):
        monkeypatch.setattr(native_cells.platform, "machine", lambda name=machine: name)
        check_cells("native", "verilator")
    monkeypatch.setattr(native_cells.platform, "machine", lambda: "riscv64")
    with pytest.raises(ToolError, match="this one is riscv64; use the cells rtl"):
        check_cells("native", "verilator")
    check_cells("rtl", "verilator")


@pytest.mark.parametrize(
    "words, message",
    [
        (["run", "--simulator", "icarus"], "native needs --simulator verilator, not icarus"),
        *slow(
            (["run", "--board", "/dev/null"], "needs a simulated core; leave out --board"),
            (["sweep"], "native needs --simulator verilator, not estimated"),
            (["text"], "native needs --simulator verilator, not model"),
            (["train", "--rtl-steps", "1", "--simulator", "model"], "native needs --simulator verilator, not model"),
            (["train"], "--cells sets the core for the comparison of steps"),
        ),
    ],
)
def test_options_without_an_rtl_are_refused(command, words, message):
    refused(command(*words, "--cells", "native"), message)


def test_python_api_refuses_native_cells_without_verilator():
    with pytest.raises(ValueError, match="not 'native' with model"):
        tpu.Simulator("model", cells="native")
    with pytest.raises(ValueError, match="not 'fast' with verilator"):
        tpu.Simulator("verilator", cells="fast")


# ---- runs


@pytest.mark.slow
@pytest.mark.parametrize("stages", STAGES)
def test_network_has_the_bits_and_cycles_of_the_rtl(tmp_path, rng, stages):
    model, core = tpu.load(write_model(tmp_path / "m.onnx")), Config(n=4, cell_stages=stages)
    x = rng.standard_normal((5, 16), np.float32)
    runs = [model.run(x, tpu.Simulator("verilator", cells=cells), core=core, batch=2) for cells in ("rtl", "native")]
    assert runs[0].result.batches == runs[1].result.batches and runs[1].result.mismatched_bits == 0
    assert runs[1].failure is None

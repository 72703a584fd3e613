"""Tests that a wrong program is noticed before it is used or written, and that a program is checked only once."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler import program_cache
from amaranth_tpu.sim.compiler.codegen.constant_image import Constants
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.data.stress_samples import stress_samples
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.host import program_check
from amaranth_tpu.sim.ir.graph import dense_chain
from command import refused
from core_networks import bfloat16s
from onnx_models import Builder, weights
from stand_in_board import StandInBoard

CORE = Config(n=4)
WRONG = "the compiler made a wrong program of model, for a batch of 2 on `tpu generate --n 4`: "


@pytest.fixture
def path(tmp_path):
    """Writes a small CNN whose tensors stay in the unified buffer. Returns its path."""
    rng, b = np.random.default_rng(1), Builder(["batch", 2, 6, 6])
    for channels, before in ((5, 2), (6, 5), (6, 6)):
        b("Conv", weights(rng, channels, before, 3, 3), pads=[1, 1, 1, 1])
        b("Relu")
    b("Flatten")
    b("Gemm", weights(rng, 216, 8))
    return b.save(tmp_path)


@pytest.fixture
def broken(monkeypatch):
    """Breaks the compiler: weights of all layers are stored in reverse."""
    pack = Constants.pack
    monkeypatch.setattr(Constants, "pack", lambda constants, image, *others: pack(constants, image[::-1], *others))


@pytest.fixture
def checks(monkeypatch):
    done, difference = [], program_check._difference
    monkeypatch.setattr(program_check, "_difference", lambda *given: done.append(given) or difference(*given))
    return done


def network(rng):
    return dense_chain("two", [("a", bfloat16s(rng, (9, 5), 0), None, "relu"), ("b", bfloat16s(rng, (5, 3), 0), None, "none")])


# A broken compiler


def test_library_refuses_a_wrong_program(path, broken):
    model = tpu.load(path)
    with pytest.raises(tpu.RunError) as raised:
        model.compile(CORE, 2)
    assert str(raised.value).startswith(f"{WRONG}96 of 96 values differ from the golden model's, first value 0 of output 't7' ")
    x = np.ones((2, 2, 6, 6), np.float32)
    with pytest.raises(tpu.RunError, match="the compiler made a wrong program"):
        model.predict(x, "icarus", core=CORE)  # before a simulator is built
    assert model.estimate(CORE, 2).cycles > 0  # no program leaves the compiler
    model.check_programs = False
    assert not model.compile(CORE, 2).checked


def test_commands_write_nothing(command, path, broken, tmp_path):
    words = "compile", "--model", path, "--n", 4, "--batch", 2, "-o", tmp_path / "out"
    refused(command(*words), WRONG, "`--no-check` uses it anyway")
    words = "run", "--model", path, "--n", 4, "--batch", 2, "--simulator", "icarus", "--output", tmp_path / "y.npy"
    refused(command(*words), WRONG)
    assert {one.name for one in tmp_path.iterdir()} == {path.name}


def test_unchecked_program_is_written(command, path, broken, tmp_path):
    done = command("compile", "--model", path, "--n", 4, "--batch", 2, "-o", tmp_path / "out", "--no-check", "--json")
    assert done.returncode == 0 and '"program_checked": false' in done.stdout
    assert (tmp_path / "out" / "model.bin").exists() and " --no-check " in (tmp_path / "out" / "model.h").read_text()


def test_board_gets_no_wrong_program(path, broken):
    with StandInBoard(CORE, memory=1 << 20) as board:
        place, x = tpu.SerialBoard(board.name), np.ones((2, 2, 6, 6), np.float32)
        with pytest.raises(tpu.RunError, match="the compiler made a wrong program"):
            tpu.load(path).predict(x, place)
        assert board.runs == 0 and not any(board.memory)
        model = tpu.load(path)
        model.check_programs = False
        with pytest.raises(tpu.RunError, match="bits differ from the golden model"):
            model.predict(x, place)
        assert board.runs == 1


# The check


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_every_bit_of_an_instruction_counts(rng, batch):
    """A program with another opcode, address or count is refused, unless its results are right for other samples too."""
    graph = network(rng)
    program = compile_network(graph, CORE, batch, "fast")
    assert program_check.checked_program(graph, program).checked
    refusals = 0
    for bit in rng.choice(8 * program.instructions * CORE.instruction_bytes, 12, replace=False):
        model = bytearray(program.model)
        model[bit // 8] ^= 1 << bit % 8
        changed = replace(program, model=bytes(model))
        try:
            program_check.checked_program(graph, changed)
        except tpu.RunError:
            refusals += 1
            continue
        x = round_bfloat16(rng.standard_normal((batch, 9), np.float32))
        host = program_check.InferenceImage(changed, x)
        (output,), fault = host.execute()
        expected = program_check.run_graph(graph, x)
        assert not fault and np.array_equal(host.results(output).view(np.uint32), expected.view(np.uint32)), bit
    assert refusals


def test_fault_is_named(rng):
    graph = network(rng)
    program = compile_network(graph, CORE, 3, "fast")
    broken = replace(program, model=b"\xff" + program.model[1:])
    with pytest.raises(tpu.RunError, match="for a batch of 3 on .*: it ends with fault ILLEGAL at pc 0x0; please report"):
        program_check.checked_program(graph, broken)


def test_samples_that_overflow_are_replaced(rng, caplog):
    """Powers of large samples are infinite, where the core may differ; the check takes smaller ones. Weights that overflow on
    all samples leave the program unchecked, with a line."""
    graph = dense_chain("big", [(str(i), np.full((9, 9), 2.0**50, bfloat16), None, "none") for i in range(2)])
    program = compile_network(graph, CORE, 1, "fast")
    assert program_check.checked_program(graph, program).checked
    huge = dense_chain("huge", [(str(i), np.full((9, 9), 2.0**127, bfloat16), None, "none") for i in range(3)])
    with caplog.at_level(logging.WARNING, "amaranth_tpu"):
        assert not program_check.checked_program(huge, compile_network(huge, CORE, 1, "fast")).checked
    assert "the program of huge is not checked" in caplog.text


def test_slow_program_has_one_batch(rng, monkeypatch, checks):
    graph = network(rng)
    program = compile_network(graph, CORE, 2, "fast")
    program_check.checked_program(graph, program)
    monkeypatch.setattr(program_check, "_PYTHON", (30, 0, 0))
    monkeypatch.setattr(program_check, "why_python", lambda: "no C compiler")
    program_check.checked_program(graph, program)
    assert [len(host.batches) for _, host, _ in checks] == [6, 1]
    assert program_check.checking("two", program).endswith(f"about {30 * program.instructions} s a run")


def test_second_check_costs_nothing(rng, tmp_path, monkeypatch, checks):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.delenv("TPU_PROGRAMS_MB")
    graph = network(rng)
    program = compile_network(graph, CORE, 2, "fast")
    for _ in range(2):
        assert program_check.checked_program(graph, program).checked and len(checks) == 1
    other = replace(graph, output_order=np.array([1, 0, 2]))  # the same bytes of program and weights
    program_check.checked_program(other, compile_network(other, CORE, 2, "fast"))
    assert len(checks) == 2
    monkeypatch.setattr(program_cache, "source_digest", lambda: "another version")
    program_check.checked_program(graph, program)
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    program_check.checked_program(graph, program)
    assert len(checks) == 4


# Samples


def test_samples_have_all_kinds():
    rows = stress_samples(dense_chain("one", [("a", np.ones((500, 2), bfloat16), None, "none")]), 4, 1, 40)
    zeros = rows[1] == 0
    assert np.signbit(rows[1][zeros]).any() and not np.signbit(rows[1][zeros]).all() and 100 < zeros.sum() < 250
    magnitudes = np.log2(np.abs(rows[rows != 0]))
    assert magnitudes.min() < -120 and magnitudes.max() > 30 and np.abs(rows[0]).max() < 6
    assert np.isfinite(rows).all()


def test_row_numbers_and_integers_keep_their_ranges(tmp_path, rng):
    """With an input of ids, of uint8 and of float32, only the last one gets numbers of all magnitudes."""
    b, kinds = Builder([]), {"ids": (TensorProto.INT64, 3), "bytes": (TensorProto.UINT8, 4), "x": (TensorProto.FLOAT, 4)}
    b.inputs = [helper.make_tensor_value_info(name, kind, ["n", size]) for name, (kind, size) in kinds.items()]
    b.node("Gather", [weights(rng, 5, 4), "ids"])
    b("ReduceMean", axes=[1], keepdims=0)
    found = b.node("Add", [b.last, b.node("Cast", ["bytes"], to=1)])
    b.node("Add", [found, "x"])
    model = tpu.load(b.save(tmp_path))
    rows = stress_samples(model.network, 40, 1, 12)
    for part, most in ((rows[:, :3], 4), (rows[:, 3:7], 255)):
        assert (part == np.rint(part)).all() and part.min() >= 0 and most / 2 < part.max() <= most
    assert np.abs(rows[:, 7:]).max() > 500
    assert model.compile(CORE, 2).checked

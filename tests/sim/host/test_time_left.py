"""Tests of the remaining time: its text, the line about long work, and the commands that tell it."""

import io
import logging

import numpy as np
import pytest
from rich.console import Console

from amaranth_tpu.hw.config import PLAIN, PRESETS, Config
from amaranth_tpu.scripts.cli.command_line import with_options
from amaranth_tpu.scripts.show.terminal import progress_bar
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.order import search
from amaranth_tpu.sim.data import progress_lines, time_left
from amaranth_tpu.sim.data.progress_lines import duration, shows_phases
from amaranth_tpu.sim.data.time_left import TimeLeft
from amaranth_tpu.sim.golden import network as golden
from amaranth_tpu.sim.host import host_image
from amaranth_tpu.sim.host.time_left import cycles_left
from onnx_models import Builder, weights


@pytest.fixture
def texts():
    found = []
    with shows_phases(found.append):
        yield found


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-0.3, "about 0 s"),
        (3, "about 3 s"),
        (119, "about 119 s"),
        (120, "about 2 min"),
        (7100, "about 118 min"),
        (7200, "about 2 h"),
        (2e5, "about 2 days"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_time_of_the_part_that_is_left():
    left = TimeLeft()
    assert left(0.25, seconds=0.5) == ""  # too early; this part was done before
    assert left(0.5, seconds=10.5) == "about 20 s left"
    assert left(0.75, seconds=30.5) == "about 15 s left"
    assert TimeLeft()(0.5, seconds=4) == ""  # all the work takes less than ten seconds
    assert TimeLeft()(1, seconds=40) == "about 0 s left"


def test_time_by_the_estimate_then_by_complete_runs(texts):
    left = cycles_left(1000, 10, "nothing")
    left(0, 0, 0.5)
    assert not texts  # too early
    left(0, 50, 2.5)  # 25 a second, of 10,000 cycles
    left(1, 3000, 100.5)  # the runs take 1,500 cycles, not 1,000
    assert texts == [
        "run 1 of 10 on the core: about 7 min left, 20 cycles a second",
        "run 2 of 10 on the core: about 7 min left, 30 cycles a second",
    ]
    cycles_left(1000, 5, "nothing")(0, 1500, 1.5)
    assert len(texts) == 2  # it takes less than ten seconds in all


def test_long_simulation_names_what_is_faster(caplog):
    left = cycles_left(10**6, 100, host_image._faster(cells="rtl"))
    with caplog.at_level(logging.WARNING, "amaranth_tpu"):
        left(0, 4000, 2)
        left(0, 8000, 4)
    (line,) = (record.getMessage() for record in caplog.records)
    assert with_options(line).startswith(
        "this takes about 14 h, 100,000,000 cycles at 2,000 a second; faster: the simulator verilator with "
        "`--cells native`, with the same cycles; `--simulator model`, without cycles; "
    )
    assert "native" not in host_image._faster(cells="native")


def test_bench_tells_cycles_within_a_batch(monkeypatch, texts, rng, tmp_path):
    """A single batch on the RTL is told before it ends, and the text is removed at the end."""
    seen = []
    monkeypatch.setattr(host_image, "cycles_left", lambda *given: lambda *found: seen.append(found))
    core = Config(n=4, unified_buffer_depth=1024, accumulator_depth=64, **PLAIN)
    b = Builder(["n", 64])
    b("MatMul", weights(rng, 64, 96))
    result = tpu.load(b.save(tmp_path)).run(np.ones((1, 64)), "icarus", core=core).result
    assert len(seen) > 1 and seen[0][0] == 0 and seen[-1][0] == 1
    assert all(0 < cycles <= 2 * result.cycles and seconds > 0 for _, cycles, seconds in seen)
    assert [cycles for _, cycles, _ in seen] == sorted(cycles for _, cycles, _ in seen)
    assert texts[-1] is None


@pytest.fixture
def dense(rng, tmp_path):
    b = Builder(["n", 24])
    b("MatMul", weights(rng, 24, 24))
    return tpu.load(b.save(tmp_path)).network


@pytest.fixture
def at_once(monkeypatch):
    """Tells times of work that takes no time."""
    monkeypatch.setattr(time_left, "_MEASURED", -1)
    monkeypatch.setattr(time_left, "_SHORT", 0)


def test_golden_model_tells_its_time(monkeypatch, at_once, texts, dense):
    monkeypatch.setattr(golden, "_TOLD", 3 * 24 * 24)
    x = np.ones((7, 24), np.float32)
    found = golden.run_graph(dense, x)
    assert texts == [*["the golden model: about 0 s left"] * 2, None]
    monkeypatch.undo()
    assert np.array_equal(found, golden.run_graph(dense, x))


@pytest.mark.search
def test_compiler_tells_its_time(monkeypatch, at_once, texts, dense):
    """The part that is done grows from 0 to 1, and the text is removed."""
    parts = []
    monkeypatch.setattr(search.TimeLeft, "__call__", lambda self, part, *_: parts.append(part) or "a while left")
    compile_network(dense, PRESETS["tiny"], 300, "fast")
    assert parts == sorted(parts) and len(parts) > 2 and parts[0] < 0.1 and 0.5 < parts[-1] < 1
    assert texts == ["the first order of instructions: a while left"] * len(parts) + [None]


def test_compiler_counts_from_the_first_job(monkeypatch, texts, caplog):
    """A minute before the first job does not make the jobs look slow."""
    clock = [0.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: clock[0])
    found = search._Search(None, None, 1, False)
    for seconds, part in ((60, 0.01), (64, 0.05)):
        clock[0] = seconds
        found._tell(part)
    assert texts == ["the first order of instructions: about 7 min left"] and not caplog.records


@pytest.mark.search
def test_very_many_instructions_are_ordered_once(monkeypatch, dense):
    simulated, real = [], search.simulate
    monkeypatch.setattr(search, "simulate", lambda *some, **fields: simulated.append(fields) or real(*some, **fields))
    monkeypatch.setattr(search, "MOST_SIMULATED", 0)
    compile_network(dense, PRESETS["tiny"], 5)
    several = len(simulated)
    monkeypatch.setattr(search, "MOST_ORDERED", 0)
    compile_network(dense, PRESETS["tiny"], 6)
    assert len(simulated) - several == 2 < several


def test_bars_tell_the_time_that_is_left(monkeypatch, at_once):
    said = []
    monkeypatch.setattr(progress_lines.ProgressLine, "__call__", lambda self, text: said.append(text))
    with progress_bar(Console(file=io.StringIO()), "sweeping") as advance:
        advance(1, 2)
    assert said == ["sweeping", "sweeping: 1 of 2, about 0 s left"]

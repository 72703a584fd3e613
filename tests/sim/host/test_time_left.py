"""Tests of the time that a simulation will take: its text, the line about long simulations, and the progress of the bench."""

import logging

import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.scripts.cli.command_line import with_options
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.progress_lines import duration, shows_phases
from amaranth_tpu.sim.host import host_image, time_left
from amaranth_tpu.sim.host.time_left import TimeLeft


@pytest.fixture
def texts():
    found = []
    with shows_phases(found.append):
        yield found


@pytest.mark.parametrize(
    "seconds, text",
    [
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


def test_time_by_the_estimate_then_by_complete_runs(texts):
    left = TimeLeft(1000, 10, "nothing")
    left(0, 0, 0.5)
    left(0, 50, 0.9)
    assert not texts  # too early
    left(0, 50, 2)  # 25 a second, of 10,000 cycles
    left(1, 3000, 100)  # the runs take 1,500 cycles, not 1,000
    assert texts == [
        "run 1 of 10 on the core: about 7 min left, 25 cycles a second",
        "run 2 of 10 on the core: about 7 min left, 30 cycles a second",
    ]
    TimeLeft(1000, 5, "nothing")(0, 1500, 1.5)
    assert len(texts) == 2  # it takes less than ten seconds in all


def test_long_simulation_names_what_is_faster(caplog):
    left = TimeLeft(10**6, 100, host_image._faster(cells="rtl"))
    with caplog.at_level(logging.WARNING, "amaranth_tpu"):
        left(0, 4000, 2)
        left(0, 8000, 4)
    (line,) = (record.getMessage() for record in caplog.records)
    assert with_options(line).startswith(
        "this simulation takes about 14 h: 100,000,000 cycles at 2,000 a second; faster: the simulator verilator with "
        "`--cells native`, with the same cycles; `--simulator model`, without cycles; "
    )
    assert "native" not in host_image._faster(cells="native")


def test_bench_tells_cycles_within_a_batch(monkeypatch, texts):
    """A single batch on the RTL is told before it ends, and the text is removed at the end."""
    seen = []
    monkeypatch.setattr(time_left.TimeLeft, "__call__", lambda self, *given: seen.append(given))
    core = Config(n=4, unified_buffer_depth=1024, accumulator_depth=64, **PLAIN)
    result = tpu.load("d").run([[0.5] * 784], "icarus", core=core).result
    assert len(seen) > 1 and seen[0][0] == 0 and seen[-1][0] == 1
    assert all(0 < cycles <= 2 * result.cycles and seconds > 0 for _, cycles, seconds in seen)
    assert [cycles for _, cycles, _ in seen] == sorted(cycles for _, cycles, _ in seen)
    assert texts[-1] is None

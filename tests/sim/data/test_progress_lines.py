"""Tests of lines of progress, with clocks of a hundredth."""

import io
import time

import pytest

from amaranth_tpu.sim.data import progress_lines
from amaranth_tpu.sim.data.progress_lines import ProgressLine


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.delenv("TPU_PROGRESS", raising=False)
    for name, seconds in (("_FIRST", 0.02), ("_REDRAWN", 0.01), ("_LINES", 0.02)):
        monkeypatch.setattr(progress_lines, name, seconds)


def shown(stream, enabled=True):
    """Returns the text on a stream after a block that waits until a line was shown, or for a moment."""
    with ProgressLine(enabled, stream) as line:
        line("step 1")
        end = time.monotonic() + (0.2 if not enabled else 10)
        while "step 1" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    return stream.getvalue()


def test_a_pipe_gets_whole_lines():
    text = shown(io.StringIO())
    assert text.endswith("\n") and set(text.splitlines()) == {"step 1 (0 s)"}


def test_a_pipe_gets_fewer_lines_of_the_same_text():
    with ProgressLine(stream=(stream := io.StringIO())) as line:
        line("step 1")
        time.sleep(0.5)
    assert 1 <= stream.getvalue().count("\n") <= 6  # at 0.02, 0.04, 0.08, 0.16, 0.32, not 25


def test_a_pipe_gets_a_new_text_soon():
    """A text that has stayed for long, so that its lines are rare, does not delay the next text."""
    with ProgressLine(stream=(stream := io.StringIO())) as line:
        line("step 1")
        time.sleep(0.35)  # the next line of this text comes at 0.62
        line("step 2")
        end = time.monotonic() + 0.15
        while "step 2" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        assert "step 2" in stream.getvalue()


def test_a_terminal_line_is_redrawn_and_removed():
    text = shown(Screen())
    assert "\n" not in text and text.startswith("\r\x1b[Kstep 1 (0 s)") and text.endswith("\r\x1b[K")


def test_silence(monkeypatch):
    assert shown(io.StringIO(), enabled=False) == ""
    monkeypatch.setattr(progress_lines, "_LINES", 60)
    with ProgressLine(stream=(stream := io.StringIO())) as line:
        line("short")
    assert stream.getvalue() == ""


def test_the_environment_suppresses_lines(monkeypatch):
    monkeypatch.setenv("TPU_PROGRESS", "0")
    with ProgressLine(stream=(stream := io.StringIO())) as line:
        line("step 1")
        time.sleep(0.2)
    assert stream.getvalue() == ""


def test_a_closed_stream_does_not_end_the_work():
    stream = io.StringIO()
    stream.close()
    with ProgressLine(stream=stream) as line:
        line("step 1")
        time.sleep(0.1)

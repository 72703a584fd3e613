"""Tests of the progress of commands without a terminal: lines on standard error."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from amaranth_tpu.scripts.show.terminal import compiling, progress_bar, spinner
from amaranth_tpu.scripts.show.training import TrainingBar
from amaranth_tpu.sim.data import progress_lines


@pytest.fixture
def console(monkeypatch):
    monkeypatch.delenv("TPU_PROGRESS", raising=False)
    monkeypatch.setattr(progress_lines, "_LINES", 0.02)
    return Console(file=io.StringIO(), force_terminal=False)


def wait(console, text):
    end = time.monotonic() + 10
    while text not in console.file.getvalue():
        assert time.monotonic() < end, console.file.getvalue()
        time.sleep(0.01)


def test_lines_without_a_terminal(console):
    with spinner(console, "reading") as step:
        wait(console, "reading (0 s)\n")
        step("the file")
        wait(console, "reading: the file (")
    with progress_bar(console, "simulating") as advance:
        wait(console, "simulating (")
        advance(3, 8)
        wait(console, "simulating: 3 of 8 (")
    with compiling(console) as advance:
        wait(console, "compiling (schedules tried) (")
        advance(1, 9)
        wait(console, "compiling (schedules tried): 1 of 9 (")


def test_lines_of_training(console):
    with TrainingBar(console) as bar:
        bar.step(1, 5, 12, 40, SimpleNamespace(loss=0.5, accuracy=0.75))
        wait(console, "epoch 1 of 5, step 12 of 40: loss 0.5000, accuracy 75.00% (")
        bar.core(1, 10)
        wait(console, "steps 1 to 10 on the core (")
        bar.core_step(4, 10)
        wait(console, "steps 1 to 10 on the core: 4 of 10 (")

"""Tests of the preset and of the samples a second that `--explain` names, and of the preset that `tpu train` chooses."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from amaranth_tpu.hw.config import PRESETS, from_preset
from amaranth_tpu.scripts.cli.board_clock import at_clock, show_clock
from amaranth_tpu.scripts.cli.core_options import CoreChoice
from amaranth_tpu.scripts.cli.faster_preset import faster_preset
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.tpu.cores import training_preset


def found(cycles, preset=None, **changes):
    """Returns the entry for a core of 1,000 cycles. `cycles` has the cycles of each preset, or None if it is too small."""
    choice, asked = CoreChoice(preset, changes), {}

    def compiled(config):
        name = next(name for name in cycles if from_preset(name, **changes) == config)
        asked[name] = config
        if cycles[name] is None:
            raise CompileError("too small")
        return SimpleNamespace(predicted_cycles=cycles[name])

    return faster_preset(choice, choice.config(), 1000, tuple(cycles), compiled), asked


@pytest.mark.parametrize(
    "cycles, best",
    [
        ({"transformer": 900, "vision": 950}, ("transformer", 900)),
        ({"transformer": 901, "vision": 950}, None),
        ({"transformer": 800, "vision": 700}, ("vision", 700)),
        ({"transformer": None, "vision": 700}, ("vision", 700)),
        ({"transformer": None, "vision": None}, None),
    ],
)
def test_a_preset_is_named_if_it_saves_a_tenth(cycles, best):
    entry, asked = found(cycles)
    assert (entry and (entry["preset"], entry["cycles"])) == best and asked.keys() == cycles.keys()


def test_a_preset_keeps_the_other_options():
    _, asked = found({"transformer": 1, "vision": 1}, n=8, softmax_lanes=2)
    assert {(config.n, config.softmax_lanes) for config in asked.values()} == {(8, 2)}
    assert found({"transformer": 1}, "transformer") == (None, {})  # the core itself


@pytest.mark.parametrize("preset", [name for name, config in PRESETS.items() if config.n != 16])
def test_a_small_core_stays_small(preset):
    assert found({"transformer": 1, "vision": 1}, preset) == (None, {})


def test_a_transformer_is_trained_on_its_preset():
    assert {name: training_preset(load_network(SHIPPED[name])) for name in ("default", "vit")} == {
        "default": "training",
        "vit": "transformer",
    }


@pytest.mark.parametrize(
    "preset, memory, shown",
    [
        (
            "ulx3s-85f",
            "32",
            "20 samples a second at 90 MHz, the clock of ulx3s-85f, with --memory 32; the board has --memory sdram-90x16@90",
        ),
        ("ulx3s-85f", "sdram-90x16@90", "20 samples a second at 90 MHz, the clock of ulx3s-85f"),
        ("ulx3s-45f", "32", "24 samples a second at 110 MHz, the clock of ulx3s-45f"),
        ("default", "32", ""),
    ],
)
def test_samples_a_second_on_a_board(preset, memory, shown, capsys):
    """A board has its own clock and memory: 8 samples of 36 million cycles."""
    plan = {"at_clock": at_clock(from_preset(preset), 36_000_000, 8, memory)}
    show_clock(Console(width=200), plan)
    assert capsys.readouterr().out.strip() == shown


def test_a_changed_core_is_no_board():
    assert at_clock(from_preset("ulx3s-85f", n=4), 1, 1, "32") is None

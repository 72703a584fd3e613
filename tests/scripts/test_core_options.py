"""Tests that each field of the configuration has an option, and that options give the intended configuration."""

from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.scripts.cli.core_options import CoreChoice, takes_core

#: For each field, a value that differs from every preset.
CHANGES = dict(n=8, cell_stages=4, unified_buffer_depth=512, accumulator_depth=128, bias_depth=16, weight_fifo_depth=2)
CHANGES |= dict(weight_rows=2, weight_formats=True, bus_width=64, address_width=40, axi_cache=15, axi_prot=2, axi_id_width=6)
CHANGES |= dict(pooling=False, table_lanes=2, softmax=False, softmax_lanes=8, normalize=True, attention=False, training=True)
CHANGES |= dict(in_flight=16, update_lanes=2, ring=True, ring_depth=16, transpose=True)


def chosen(*words):
    """Parses `words` with a test command. Returns the chosen core and the value of `--other`, or the error output."""
    seen = []
    app = typer.Typer()

    @app.command()
    @takes_core("the other one")
    def command(core: CoreChoice, other: int = 3):
        seen.append((core, other))

    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    return seen[0] if seen else done.output


def words_of(changes):
    flags = {name: f"--{name.replace('_', '-')}" for name in changes}
    return [
        word
        for name, value in changes.items()
        for word in (
            [flags[name].replace("--", "--" if value else "--no-", 1)] if isinstance(value, bool) else [flags[name], str(value)]
        )
    ]


def test_every_field():
    assert set(CHANGES) == {entry.name for entry in fields(Config)}
    # These need features that other changes switch off.
    changes = CHANGES | {"training": False, "update_lanes": 0, "normalize": False}
    core, other = chosen("--other", "5", *words_of(changes))
    assert core.changes == changes and core.config() == Config(**changes) and other == 5
    assert len(core.given) == len(changes) and "--weight-fifo-depth" in core.given
    core, _ = chosen("--preset", "plain", "--pooling", "--softmax")
    assert core.config() == Config(**PLAIN | {"pooling": True, "softmax": True})
    assert core.given == ["--preset", "--pooling", "--softmax"]


NEEDS = {"update_lanes": {"training": True}, "normalize": {"softmax_lanes": 2}}


@pytest.mark.parametrize(
    "changes", [{name: value} | NEEDS.get(name, {}) for name, value in CHANGES.items()], ids=lambda changes: next(iter(changes))
)
def test_option_changes_one_field(changes):
    """An option for one field changes this field only; the others stay as in the preset."""
    assert chosen(*words_of(changes))[0].config() == Config(**changes) != Config()


def test_nothing_given():
    core, other = chosen()
    assert not core.given and other == 3 and core.config() == Config() and core.config("plain") == Config(**PLAIN)
    assert chosen("--preset", "tiny")[0].config("plain").n == 4


def test_help():
    said = " ".join(chosen("--help").replace("│", " ").split())
    panel = said.partition("─ Core ─")[2]
    assert "--other" not in panel and "Default: the other one." in panel
    for entry in fields(Config):
        assert f"--{entry.name.replace('_', '-')} " in panel
    assert "--no-pooling" in panel and "Bits of an AXI4 address, 32 to 64. Preset `default`: 32." in panel

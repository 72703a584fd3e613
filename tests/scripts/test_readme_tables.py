"""The tables of the README: their cores are those of the commands that stand beside them, and so are their figures."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, Config, from_preset
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.targets import RESOURCES
from amaranth_tpu.scripts import tpu
from amaranth_tpu.scripts.cli.core_options import CoreChoice
from amaranth_tpu.scripts.show.markdown import section
from amaranth_tpu.sim.frontend.operators import supported_operators
from command import tpu as run_tpu

README = Path(__file__).parents[2] / "README.md"
TABLES = ("utilisation", "networks", "training", "boards", "devices")
_MAKE = CoreChoice.config


def rows(name):
    """The rows of a table: {heading: text}."""
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section(README, name).splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def command(name, row):
    """The words of the row's command: what the README says, with the row's values in the place of capitals."""
    before = README.read_text().partition(f"<!-- begin {name} -->")[0].rpartition("\n\n")[0].rpartition("\n\n")[2]
    [text] = re.findall(r"A row(?:'s cycles are those of| is)\s+`tpu ([^`]*)`", before)
    size = row.get("n") or row.get("largest n")
    values = {
        "N": "2" if size == "none" else size,
        "B": row.get("batch"),
        "NAME": row.get("network"),
        "BOARD": row.get("board"),
        "PART": row.get("part"),
        "DIR": None,
        "E": row.get("epochs"),
        "K": row.get("steps on the core"),
    }
    words = [values.get(word, word) for word in shlex.split(text.replace("OPTIONS", row.get("options", "").strip("`")))]
    while None in words:  # the folder with MNIST: without it, other digits, and the same cycles
        del words[words.index(None) - 1 : words.index(None) + 1]
    return words


def core_of(words, monkeypatch):
    """The configuration that a command makes; it ends there."""
    made = []

    def config(self, *default):
        made.append(_MAKE(self, *default))
        raise InterruptedError

    monkeypatch.setattr(CoreChoice, "config", config)
    done = CliRunner().invoke(tpu.app, words)
    assert isinstance(done.exception, InterruptedError), done.output
    return made[0]


def expected_core(name, row):
    """What :mod:`scripts.benchmark` measures."""
    if name == "boards":
        return PRESETS[BOARDS[row["board"]].preset]
    if name == "devices":
        seen = {}

        def implement(config, target, folder, progress):
            seen[config.n] = config
            return dict.fromkeys(RESOURCES, 0 if str(config.n) == row["largest n"] else 1 << 30)

        [found] = largest_cores([row["part"]], Path(), implement=implement)
        return seen[found["n"] or 2]
    return PRESETS["training"] if name == "training" else Config(n=int(row.get("n", 16)))


@pytest.mark.parametrize("name", TABLES)
def test_cores(name, monkeypatch):
    for row in rows(name):
        if row.get("steps on the core") == "0":  # none is made
            continue
        core = core_of(command(name, row), monkeypatch)
        assert core == expected_core(name, row), row
        if name == "devices":
            assert core == from_preset("tiny", n=core.n)


def test_operators():
    """The operators that the README names are supported; it names no other words in this spelling but products."""
    text = README.read_text().partition("Models: ONNX")[2].partition("\n* ")[0]
    known = {name for names in supported_operators().values() for name in names}
    named = {*re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", text)} - {"PyTorch", "Keras", "Convolutions", "Anything", "What", "Some"}
    assert {"Softmax", "LeakyRelu"} <= named <= known, named - known


def made(name, key, **row):
    """A row, and what its command prints as JSON."""
    [found] = [one for one in rows(name) if row.items() <= one.items()]
    done = run_tpu(*command(name, found), "--json", *key, timeout=3 * 3600)
    assert done.stdout, done.stderr
    return found, json.loads(done.stdout)


def same_resources(row, counts, available):
    for name, heading in zip(RESOURCES, ("LUT", "FF", "DSP", "block RAM")):
        assert row[heading].startswith(f"{counts[name]:,} of {available[name]:,}"), (heading, row[heading], counts[name])


@pytest.mark.slow
def test_utilisation():
    row, figures = made("utilisation", (), n="8", batch="1")
    assert (row["cycles"], row["utilisation"]) == (f"{figures['cycles']:,}", f"{figures['utilisation']:.2%}")


@pytest.mark.slow
def test_networks():
    row, figures = made("networks", (), network="d")
    assert (row["cycles, batch of 32"], row["utilisation"]) == (f"{figures['cycles']:,}", f"{figures['utilisation']:.1%}")


@pytest.mark.slow
def test_devices(tmp_path):
    row, figures = made("devices", ("-o", tmp_path), part="ice40-up5k")
    same_resources(row, figures, figures["available"])


@pytest.mark.slow
def test_boards(tmp_path):
    row, figures = made("boards", ("-o", tmp_path), board="ulx3s-25f")
    same_resources(row, figures["total"], figures["available"])
    assert (row["MHz"], row["its clock"]) == (f"{figures['fmax_mhz']:.1f}", f"{figures['clock_mhz']:.1f}")


@pytest.mark.slow
def test_processors():
    [row] = [row for row in rows("processors") if "`ulx3s-45f`" in row["what"] and row["batch"] == "1"]
    done = run_tpu("run", "--preset", "ulx3s-45f", "--images", "1", "--batch", "1", "--json", timeout=3600)
    figures, macs = json.loads(done.stdout), 784 * 128 + 128 * 10
    moved = (figures["read_beats"] + figures["write_beats"]) * PRESETS["ulx3s-45f"].bus_bytes
    assert (row["MACs a cycle"], row["bytes moved a MAC"]) == (f"{macs / figures['cycles']:.3g}", f"{moved / macs:.3g}")

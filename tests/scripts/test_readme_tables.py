"""Tests that the tables of measurements have the cores and figures of the commands printed above the tables."""

import json
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, Config, from_preset
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.targets import RESOURCES
from amaranth_tpu.scripts import tpu
from amaranth_tpu.scripts.benchmark import summary as summary_module
from amaranth_tpu.scripts.benchmark.summary import HEAD, seconds_rows, summary_rows
from amaranth_tpu.scripts.cli.core_options import CoreChoice
from amaranth_tpu.scripts.datasheet import SECTIONS
from amaranth_tpu.scripts.show.documents import DOCUMENTS, RESULTS, ROOT, table, table_rows
from amaranth_tpu.scripts.show.markdown import markdown_table
from amaranth_tpu.sim.frontend.apply import supported_operators
from command import tpu as run_tpu

TABLES = ("utilisation", "networks", "training", "boards", "devices")
_MAKE = CoreChoice.config


def command(name, row):
    """Returns the command of a table's row as a list of words, with the row's values in place of the document's placeholders."""
    before = DOCUMENTS[name].read_text().partition(f"<!-- begin {name} -->")[0].rpartition("\n\n")[0].rpartition("\n\n")[2]
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
    while None in words:  # removes the option for the MNIST folder: other digits give the same cycles
        del words[words.index(None) - 1 : words.index(None) + 1]
    return words


def core_of(words, monkeypatch):
    """Runs a command up to the point where it makes its configuration, and returns the configuration."""
    made = []

    def config(self, *default):
        made.append(_MAKE(self, *default))
        raise InterruptedError

    monkeypatch.setattr(CoreChoice, "config", config)
    done = CliRunner().invoke(tpu.app, words)
    assert isinstance(done.exception, InterruptedError), done.output
    return made[0]


def expected_core(name, row):
    if name == "boards":
        return PRESETS[BOARDS[row["board"]].preset]
    if name == "devices":
        seen = {}

        def implement(config, target, folder, progress):
            seen[config.n] = config
            return dict.fromkeys(RESOURCES, 0 if str(config.n) == row["largest n"] else 1 << 30)

        [found] = largest_cores([row["part"]], Path(), implement=implement)
        return seen[found["n"] or 2]
    if name == "training":
        said = re.findall(r"--([a-z-]+)(?: (\d+))?", row["options"])
        values = {word.replace("-", "_"): int(number or 1) for word, number in said}
        return replace(PRESETS["training"], **{one.name: values[one.name] for one in fields(Config) if one.name in values})
    return Config(n=int(row.get("n", 16)))


@pytest.mark.parametrize("name", TABLES)
def test_cores_equal_the_commands(name, monkeypatch):
    for row in table_rows(name):
        if row.get("steps on the core") == "0":  # no core is made
            continue
        core = core_of(command(name, row), monkeypatch)
        assert core == expected_core(name, row), row
        if name == "devices":
            assert core == from_preset("tiny", n=core.n)


#: Capitalised words of this part of `sim/README.md` that are no operators.
_WORDS = {"PyTorch", "Keras", "Python", "False", "The", "Everything", "Tensors", "Some"}


def test_named_operators_are_supported():
    """The operators that `sim/README.md` names are supported. All other capitalised words in this file are product names."""
    text = (ROOT / "sim" / "README.md").read_text().partition("Models: ONNX")[2].partition("\n\n")[2].partition("\n\n")[0]
    known = {name for names in supported_operators().values() for name in names}
    named = {*re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", text)} - _WORDS
    assert {"Softmax", "LeakyRelu"} <= named <= known, named - known


def test_each_table_is_in_its_document():
    """Each table that `--write` generates has a place in a document. These documents have no other marked tables, except the
    tables of the datasheet that are not measured."""
    assert all(table(name).startswith("| ") for name in DOCUMENTS)
    for path in {*DOCUMENTS.values()}:
        marked = {*re.findall(r"^<!-- begin (.*) -->$", path.read_text(), re.MULTILINE)}
        described = {name for name, (file, _) in SECTIONS.items() if file == path}
        assert marked == described | {name for name, document in DOCUMENTS.items() if document == path}


def test_reasons_in_the_readme_have_figures_of_the_tables():
    text = (ROOT / "README.md").read_text().partition("## Why")[2].partition("## For whom")[0].partition("## Two")[0]
    [trained] = [
        row for row in table_rows("training") if not row["options"] and (row["network"], row["batch"]) == ("default", "64")
    ]
    [board] = [row for row in table_rows("boards") if row["board"] == "ulx3s-45f"]
    tests = {name.rstrip(": "): value for name, value in (list(row.values()) for row in table_rows("node-tests"))}
    figures = f"to {trained['accuracy']}", f"--rtl-steps {trained['steps on the core']}`", f"{board['MHz']} MHz"
    for figure in (*figures, f"{tests['passed']} pass, {tests['wrong']} give wrong"):
        assert figure in " ".join(text.split()), figure
    cycles = 4 * int(
        next(row["cycles"] for row in table_rows("utilisation") if (row["n"], row["batch"]) == ("16", "128")).replace(",", "")
    )
    assert f"demo's {cycles:,} cycles" in text


def test_summary_follows_the_tables(monkeypatch):
    """The summary tables are those computed from the longer tables. If a figure in a longer table changes, the summary changes
    too."""
    assert table("summary") == markdown_table(HEAD, summary_rows())
    assert table("seconds") == markdown_table(HEAD, seconds_rows())
    longer = {name: table_rows(name) for name, document in DOCUMENTS.items() if document == RESULTS}
    longer["utilisation"][0]["bits different"] = "3"
    monkeypatch.setattr(summary_module, "table_rows", longer.__getitem__)
    assert summary_rows()[-1][1] == "3"


def made(name, key, **row):
    """Runs the command of the row of table `name` with the values `row`, with `--json` and the options `key`. Returns the row and
    the parsed JSON."""
    [found] = [one for one in table_rows(name) if row.items() <= one.items()]
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
    [row] = [row for row in table_rows("processors") if "`ulx3s-45f`" in row["what"] and row["batch"] == "1"]
    done = run_tpu("run", "--preset", "ulx3s-45f", "--images", "1", "--batch", "1", "--json", timeout=3600)
    figures, macs = json.loads(done.stdout), 784 * 128 + 128 * 10
    moved = (figures["read_beats"] + figures["write_beats"]) * PRESETS["ulx3s-45f"].bus_bytes
    assert (row["MACs a cycle"], row["bytes moved a MAC"]) == (f"{macs / figures['cycles']:.3g}", f"{moved / macs:.3g}")

"""Tests of tables with some rows measured again, and of the versions of rows."""

import os

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, Config
from amaranth_tpu.hw.fpga.targets import RESOURCES
from amaranth_tpu.scripts.benchmark import common, fpga, versions
from amaranth_tpu.scripts.benchmark.common import publish, with_other_rows
from amaranth_tpu.scripts.benchmark.mlperf_tiny import core_of
from amaranth_tpu.scripts.show import documents
from amaranth_tpu.sim.rtl.host_memory import DEFAULT_HOST

HEAD = ["network", "batch", "cycles"]
KEYS = [("a", 64), ("b", 64), ("b", 128)]


def _row(*cells):
    return dict(zip(HEAD, cells))


def test_measured_rows_replace_theirs_and_others_stay():
    others = [_row("gone", "1", "5"), _row("b", "64", "70"), _row("a", "64", "60")]
    rows = with_other_rows(HEAD, [["b", 64, "71"], ["b", 128, "140"]], others, KEYS)
    assert rows == [["a", "64", "60"], ["b", "64", "71"], ["b", "128", "140"]]


def test_rows_of_a_table_with_other_columns_are_dropped():
    others = [{"network": "a", "batch": "64", "seconds": "1"}]
    assert with_other_rows(HEAD, [["b", 64, "71"]], others, KEYS) == [["b", "64", "71"]]


def test_version_follows_code_and_not_its_comments(tmp_path):
    (tmp_path / "hw" / "bus").mkdir(parents=True)
    (tmp_path / "hw" / "bus" / "load.py").write_text(
        '"""Loads."""\n\n\ndef f(x):\n    """Returns x."""\n    return x  # as it is\n'
    )
    found = [versions._digest("ring", tmp_path)]
    for text in ("def f(x):\n    return x\n", "def f(x):\n    return -x\n"):
        (tmp_path / "hw" / "bus" / "load.py").write_text(text)
        found.append(versions._digest("ring", tmp_path))
    assert found[0] == found[1] != found[2]


def test_rows_have_versions_and_older_ones_are_listed(tmp_path, monkeypatch):
    """A measured row gets the version of its sources. Rows that were not measured keep theirs, and are listed as older."""
    page = tmp_path / "page.md"
    page.write_text("<!-- begin ring -->\n| n | cycles |\n| --- | --- |\n| 4 | 1 |\n| 8 | 2 |\n<!-- end ring -->\n")
    monkeypatch.setattr(documents, "DOCUMENTS", {"ring": page})
    monkeypatch.setattr(documents, "write_copies", lambda: None)
    monkeypatch.setattr(versions, "DECIDED_BY", {"ring": ("hw/bus",)})
    versions.version_of.cache_clear()
    assert [row[:3] for row in versions.old_rows()] == [("ring", "4 1", ""), ("ring", "8 2", "")]
    publish("ring", ["n", "cycles"], [["8", "3"]], [], False, True, [("4",), ("8",)])
    assert documents.table_rows("ring")[1] == {"n": "8", "cycles": "3", "made by": common.version_of("ring")}
    assert [row[:3] for row in versions.old_rows()] == [("ring", "4 1", "")]
    versions.version_of.cache_clear()


def test_figures_of_a_file_older_than_a_source_have_no_version(tmp_path):
    (tmp_path / "report.json").write_text("{}")
    assert versions.version_of_file("ring", tmp_path / "report.json") == versions.version_of("ring")
    os.utime(tmp_path / "report.json", (0, 0))
    assert versions.version_of_file("ring", tmp_path / "report.json") == ""


def test_sources_of_tables_exist():
    assert versions.DECIDED_BY.keys() <= documents.DOCUMENTS.keys()
    for part in {part for parts in versions.DECIDED_BY.values() for part in parts}:
        assert [*documents.ROOT.glob(part)], part


def test_rows_of_mlperf_tiny_have_the_boards_own_core_and_memory():
    """The time at a board's clock is of the core and the SDRAM that the board has. Other rows have no such time."""
    core, host, clock = core_of("default", 8)
    assert (core, host.bytes_per_cycle, clock) == (PRESETS["ulx3s-85f"], 2, BOARDS["ulx3s-85f"].clock_mhz)
    assert core_of("default", 16) == (Config(), DEFAULT_HOST, None)
    assert core_of("vision", 8)[2] is None


def test_options_are_compared_with_the_core_without_them(tmp_path, monkeypatch, capsys):
    """Each row has the difference of two cores. A core that two rows need is synthesized once, and later cores get the modules of
    earlier ones."""
    made, knowns = [], []

    def implement(config, target, folder, known, progress):
        made.append(config)
        knowns.append({**known})
        known[str(len(made))] = {}
        return dict.fromkeys(RESOURCES, 100) | {"lut": 1000 + 10 * config.softmax_lanes + 500 * config.normalize}

    monkeypatch.setattr(fpga, "implement", implement)
    monkeypatch.setattr(fpga, "build_directory", lambda: tmp_path)
    (tmp_path / "options").mkdir()
    fpga.options("softmax_lanes,normalize", 4, as_json=False)
    text = capsys.readouterr().out
    assert "+30" in text and "+500" in text and len(made) == 3 and {one.training for one in made} == {True}
    assert knowns == [{}, {"1": {}}, {"1": {}, "2": {}}]

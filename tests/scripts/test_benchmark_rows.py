"""Tests of tables with some rows measured again."""

from amaranth_tpu.scripts.benchmark.common import with_other_rows

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

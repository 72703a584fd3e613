"""Tests that the on-disk cache of function tables reuses a table, and computes it again if its file is damaged or missing."""

import functools
import os

import numpy as np
import pytest

from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden import function_tables, table_cache
from amaranth_tpu.sim.golden.function_tables import table_of
from suites import slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    function_tables.table_of.cache_clear()
    yield tmp_path / "tables"
    function_tables.table_of.cache_clear()


@functools.cache
def table_of_abs():
    return table_of(Function("abs"))


@pytest.fixture
def computed(monkeypatch):
    """Returns a list of the functions whose tables were computed. The table of `abs` takes the place of each result."""
    functions, table = [], table_of_abs()
    monkeypatch.setattr(function_tables, "_computed", lambda function: functions.append(function) or table)
    return functions


def fresh(function, monkeypatch=None):
    """Returns a function's table from the disk cache or newly computed, with an empty cache in memory. If `monkeypatch` is given,
    it must be in the disk cache."""
    function_tables.table_of.cache_clear()
    if monkeypatch is None:
        return table_of(function)
    with monkeypatch.context() as patch:
        patch.setattr(function_tables, "_computed", lambda function: pytest.fail("computed again"))
        return table_of(function)


def same(one, two):
    settings = ({**vars(table), "words": None} for table in (one, two))
    return next(settings) == next(settings) and one.words.dtype == two.words.dtype and np.array_equal(one.words, two.words)


def test_tables_are_reused(folder, monkeypatch):
    """Two functions that differ only in their parameters have separate cache files, and no temporary file stays."""
    one, two = Function("leaky_relu", (0.25,)), Function("leaky_relu", (0.5,))
    tables = fresh(one), fresh(two)
    assert not same(*tables)
    for function, table in zip((one, two), tables):
        again = fresh(function, monkeypatch)
        assert same(again, table) and not again.words.flags.writeable
        assert same(table, function_tables._computed(function))
    assert len(list(folder.iterdir())) == len(list(folder.glob("*.table"))) == 2


@pytest.mark.parametrize(
    "damage", ["cut", *slow("longer", "empty", "first byte"), "last byte", *slow("other function's"), "a folder"]
)
def test_damaged(folder, monkeypatch, damage):
    function = Function("hard_sigmoid")
    table = fresh(function)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    flipped = bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1])
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "other function's":
        fresh(Function("abs"))
        os.rename(*folder.iterdir(), path)
    else:
        path.write_bytes(
            {"cut": content[:-1], "longer": content + b"\0", "empty": b"", "first byte": flipped[0], "last byte": flipped[1]}[
                damage
            ]
        )
    assert same(fresh(function), table)
    if damage != "a folder":
        assert path.read_bytes() == content  # and it is written again
        assert same(fresh(function, monkeypatch), table)


def test_other_version(computed, folder, monkeypatch):
    fresh(Function("abs"))
    assert len(computed) == 1
    monkeypatch.setattr(table_cache, "_version", lambda module: b"another")
    assert (
        table_cache.load(("abs", ()), function_tables._MODULES, len(function_tables._SETTINGS) + function_tables.TABLE_WORDS)
        is None
    )


def test_unusable_folder_is_ignored(computed, folder, monkeypatch):
    """If the cache folder cannot be written or is a file, the table is computed and equals the cached one."""
    table = fresh(Function("abs"))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    assert same(fresh(Function("abs")), table) and len(computed) == 2
    monkeypatch.setattr("amaranth_tpu.hw.tools.process.build_directory", lambda: exec("raise PermissionError(13, 'no')"))
    assert same(fresh(Function("abs")), table) and len(computed) == 3


def test_old_ones_go(folder, monkeypatch):
    monkeypatch.setattr(table_cache, "_MOST_BYTES", 3 * (32 + 2 * 8))
    for number in range(5):
        table_cache.store(number, function_tables._MODULES, np.arange(8) + number)
        os.utime(max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns), (1000 + number, 1000 + number))
    left = [table_cache.load(number, function_tables._MODULES, 8) for number in range(5)]
    assert [value is not None for value in left] == [False, False, True, True, True]
    assert np.array_equal(left[4], np.arange(8) + 4)

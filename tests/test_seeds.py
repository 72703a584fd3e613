"""Tests of the list of seeds that failed once."""

import os
import sys
from pathlib import Path

import seeds
from command import captured

ROOT = Path(__file__).parents[1]


def test_every_recorded_test_exists():
    """A test that is renamed takes its lines of the list along."""
    for test, _ in seeds.recorded(seeds.FAILED.read_text()):
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_rounds_end_with_the_recorded_seeds(monkeypatch):
    monkeypatch.setattr(
        seeds, "_FAILED", seeds.recorded("# a comment\n\none.py::test[a b] 5\none.py::test[a b] 9\nother.py::test 7\n")
    )
    assert seeds.rounds("one.py::test[a b]", 2) == [seeds.FIRST, seeds.FIRST + 1, 5, 9]
    assert seeds.rounds("one.py::test[c]", 1) == [seeds.FIRST]


def test_a_recorded_seed_is_run(tmp_path):
    """A test fails with its recorded seed alone, and the report has the line of the list."""
    folder = tmp_path / "tests"
    folder.mkdir()
    for one in ("conftest.py", "support"):
        (folder / one).symlink_to(ROOT / "tests" / one)
    (folder / "failed_seeds.txt").write_text("tests/test_one.py::test_one 77\n")
    (folder / "test_one.py").write_text("".join(f"def test_{name}(seed):\n    assert seed != 77\n" for name in ("one", "two")))
    environment = {**os.environ, "TPU_SEED": "3", "PYTHONPATH": str(folder / "support")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--seeds", "3"]
    done = captured(command, cwd=tmp_path, env=environment)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "tests/failed_seeds.txt: tests/test_one.py::test_one 77" in done.stdout

"""Tests of the regression of a night, with steps that take no time."""

import json
import re

from amaranth_tpu.scripts import mutate, night

STEPS = (
    night.Step("good", ("-c", "import os; print('seed', {seed}, os.environ['TPU_SEED'])"), 60, short=True),
    night.Step("bad", ("-c", "raise SystemExit('two differ')"), 60),
    night.Step("late", ("-c", "import time; print('begun', flush=True); time.sleep(60)"), 1),
)


def test_report(monkeypatch, tmp_path, command):
    """Each step runs, whatever the others do. The report and the exit status say which ones failed."""
    report = tmp_path / "regression.md"
    report.write_text("before\n<!-- begin regression -->\n<!-- end regression -->\nafter\n")
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setattr(night, "STEPS", STEPS)
    monkeypatch.setattr(night, "REPORT", report)
    done = command("--seed", "7", "--json", "--write", main=night.main)
    steps = json.loads(done.stdout)["steps"]
    found = [("good", "passed", "seed 7 7"), ("bad", "failed", "two differ"), ("late", "no end", "begun")]
    assert [(step["title"], step["result"], step["last"]) for step in steps] == found
    assert done.returncode == 1 and "bad: failed; late: no end" in done.stderr
    text = report.read_text()
    assert "seed 7." in text and "| bad | failed | 0 | two differ |" in text and text.endswith("after\n")
    assert command("good", "--write", main=night.main).returncode == 0 and "| bad | not run |" in report.read_text()
    done = command("--short", "--seed", "7", main=night.main)
    assert done.returncode == 0 and "good" in done.stdout and "bad" not in done.stdout


def test_slow_tests_of_each_block_are_run():
    """The steps run the slow tests of each folder of `tests/hw` with a part of the core."""
    place, others = night.ROOT / "tests" / "hw", mutate._OTHERS
    slow = {path.parent.name for path in place.rglob("test_*.py") if re.search(r"mark\.slow|\bslow\(", path.read_text())}
    words = {word for step in night.STEPS if "slow" in step.command for word in step.command}
    assert {"control", "core"} <= slow and {f"tests/hw/{name}" for name in slow if name not in others} <= words


def test_limits():
    """The steps end within two hours, and the short ones, which CI runs, within a minute. Their titles differ."""
    assert sum(step.limit for step in night.STEPS) <= 7200
    assert 0 < sum(step.limit for step in night.STEPS if step.short) <= 60
    assert "amaranth_tpu.scripts.night --short" in (night.ROOT / ".ci" / "run").read_text()
    assert len({step.title for step in night.STEPS}) == len(night.STEPS)

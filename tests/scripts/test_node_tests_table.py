"""Tests of the table of the onnx package's own node tests, covering the command that writes it, and the table in the document."""

import json

import pytest
import typer
from typer.testing import CliRunner

from amaranth_tpu.scripts.benchmark import node_tests as table_module
from amaranth_tpu.scripts.show.documents import table_rows
from amaranth_tpu.sim.check.node_tests import PASSED, REFUSED, WRONG, Reading


def test_table_in_document_has_no_wrong_test():
    """In the document's table the counts add up to all tests, and none is "wrong" or "traceback"."""
    rows = [list(row.items()) for row in table_rows("node-tests")]
    counts = {name: int(count) for (_, name), (_, count) in rows}
    [heading] = {row[1][0] for row in rows}
    assert f"of {sum(counts.values())} tests" == heading
    assert counts["wrong"] == counts["traceback"] == 0 < counts["passed"]


@pytest.mark.parametrize("outcome, status", [(REFUSED, 0), (WRONG, 1)])
def test_wrong_result_sets_exit_status(monkeypatch, outcome, status):
    """The command `onnx-node-tests` exits with 1 if a node test gives wrong results, and with 0 if the network is refused."""

    class Case:
        name = "test_one"

    monkeypatch.setattr(table_module.suite, "node_tests", lambda: [Case(), Case()])
    readings = iter([[Reading("test_one", ("x",), PASSED)], [Reading("test_one", ("x",), outcome, "why; what to do")]])
    monkeypatch.setattr(table_module.suite, "readings", lambda case: next(readings))
    app = typer.Typer()
    app.command()(table_module.onnx_node_tests)
    done = CliRunner().invoke(app, ["--json", "--contains", "one"])
    assert done.exit_code == status
    assert [test["outcome"] for test in json.loads(done.stdout)["tests"]] == [PASSED, outcome]

"""Results of the onnx package's operator tests: the number of tests that pass, and the reasons for refusals."""

from typing import Annotated

import onnx
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.sim.check import node_tests as suite

from .common import Json, Write, app, publish

__all__ = ["onnx_node_tests"]

_MOST = 12  # most reasons with their own row


def _rows(found):
    """Returns the rows of the table. `found` has `(outcome, reading)` for each test."""
    counts = {kind: sum(one == kind for one, _ in found) for kind in (suite.PASSED, suite.WRONG, suite.TRACEBACK)}
    rows = [[kind, count] for kind, count in counts.items()]
    groups = suite.groups([reading for outcome, reading in found if outcome == suite.REFUSED])
    rows += [[f"refused: {reason}", count] for reason, count in groups[:_MOST]]
    rest = sum(count for _, count in groups[_MOST:])
    return rows + [[f"refused, for {len(groups) - _MOST} other reasons", rest]] * (rest > 0)


@app.command()
def onnx_node_tests(
    contains: Annotated[str, typer.Option(help="Only run tests with this text in their names.")] = "",
    as_json: Json = False,
    write: Write = False,
):
    """Run the onnx package's tests of operators with floating-point inputs, each with all inputs and with one of them.

    Exits with 1 if a result is wrong or a test ends in a traceback.
    """
    cases = [case for case in suite.node_tests() if contains in case.name]
    shown = track(cases, "reading", console=Console(stderr=True), transient=True)
    found = [suite.outcome(suite.readings(case)) for case in shown]
    figures = {"onnx": onnx.__version__, "tests": [{"outcome": kind, **vars(reading)} for kind, reading in found]}
    publish("node-tests", [f"onnx {onnx.__version__}", f"of {len(found)} tests"], _rows(found), figures, as_json, write)
    if any(kind in (suite.WRONG, suite.TRACEBACK) for kind, _ in found):
        raise typer.Exit(1)

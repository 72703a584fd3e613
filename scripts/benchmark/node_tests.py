"""The onnx package's own tests of its operators: how many pass, and why the others are refused."""

from typing import Annotated

import onnx
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.sim.check import node_tests as suite

from .common import Json, Write, app, publish

__all__ = ["onnx_node_tests"]

_MOST = 12  # reasons with a row of their own


def _rows(found):
    """Rows of the table: `found` are (outcome, reading) of each test."""
    counts = {kind: sum(one == kind for one, _ in found) for kind in (suite.PASSED, suite.WRONG, suite.TRACEBACK)}
    rows = [[kind, count] for kind, count in counts.items()]
    groups = suite.groups([reading for outcome, reading in found if outcome == suite.REFUSED])
    rows += [[f"refused: {reason}", count] for reason, count in groups[:_MOST]]
    rest = sum(count for _, count in groups[_MOST:])
    return rows + [[f"refused, for {len(groups) - _MOST} other reasons", rest]] * (rest > 0)


@app.command()
def onnx_node_tests(
    contains: Annotated[str, typer.Option(help="Only tests with this in their names.")] = "",
    as_json: Json = False,
    write: Write = False,
):
    """The onnx package's tests of operators with floating-point inputs, each read with all inputs and with one of them. Ends with
    status 1 if one is wrong or ends in a traceback."""
    cases = [case for case in suite.node_tests() if contains in case.name]
    shown = track(cases, "reading", console=Console(stderr=True), transient=True)
    found = [suite.outcome(suite.readings(case)) for case in shown]
    figures = {"onnx": onnx.__version__, "tests": [{"outcome": kind, **vars(reading)} for kind, reading in found]}
    publish("node-tests", [f"onnx {onnx.__version__}", f"of {len(found)} tests"], _rows(found), figures, as_json, write)
    if any(kind in (suite.WRONG, suite.TRACEBACK) for kind, _ in found):
        raise typer.Exit(1)

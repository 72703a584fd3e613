"""Counts of the onnx package's operator tests that pass, by the rules of its own runner, and by operators."""

import collections
import logging
import warnings
from typing import Annotated

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.check import node_tests as suite
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.tpu.onnx_backend import Backend

from .common import Json, Write, app, publish

__all__ = ["onnx_backend", "passes"]

_ERRORS = (tpu.ModelError, tpu.DataError, tpu.InterpreterError, tpu.CompileError, tpu.RunError)
_BFLOAT16 = 0.02  # largest difference, relative to the largest value of an output
PASSED, REFUSED, WRONG = "passed", "refused", "wrong"


def passes(case, strict):
    """Runs a test with all of its inputs as inputs, by ONNX' interface of backends. Returns `passed`, `refused` or `wrong`.

    Results are right if they are within the tolerances of the test, or within bfloat16's of 2 % of the largest value.
    """
    try:
        prepared = Backend.prepare(case.model, strict=strict)
        return PASSED if all(_is_right(case, prepared.run(inputs), wanted) for inputs, wanted in case.data_sets) else WRONG
    except _ERRORS:
        return REFUSED


def _is_right(case, found, wanted):
    return all(_is_near(one, right, case.rtol, case.atol) for one, right in zip(found, wanted))


def _is_near(found, right, *tolerance):
    if isinstance(right, list) or right is None:
        return right is found or found is not None and len(found) == len(right) and all(map(_equal, found, right))
    right = onnx.numpy_helper.to_array(right) if isinstance(right, onnx.TensorProto) else right
    found, right = np.asarray(found), np.asarray(right)
    is_number = right.dtype.kind in "fiub" or right.dtype == bfloat16
    if found.shape != right.shape or not is_number:
        return found.shape == right.shape and bool((found == right).all())
    found, right = found.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(right)
    near = max(tolerance[1], _BFLOAT16 * np.abs(right[finite]).max(initial=0))
    return np.allclose(found, right, *tolerance, equal_nan=True) or np.allclose(found, right, 0, near, equal_nan=True)


def _equal(one, other):
    return np.shape(one) == np.shape(other) and bool((np.asarray(one) == np.asarray(other)).all())


@app.command()
def onnx_backend(
    contains: Annotated[str, typer.Option(help="Only run tests with this text in their names.")] = "",
    as_json: Json = False,
    write: Write = False,
):
    """Count the onnx package's operator tests that pass: with all inputs, with constants in place of some, and by operators."""
    logging.disable(logging.WARNING)  # a line for each model that is divided
    with warnings.catch_warnings(action="ignore"):  # the package's own, when it makes the data
        from onnx.backend.test.loader import load_model_tests

        cases = [case for case in load_model_tests(kind="node") if contains in case.name and case.model is not None]
        found, operators = {}, collections.defaultdict(list)
        with_floats = {case.name: case for case in suite.node_tests()}
        for case in track(cases, "running", console=Console(stderr=True), transient=True):
            ours = suite.outcome(suite.readings(with_floats[case.name]))[0] if case.name in with_floats else REFUSED
            alone, together = passes(case, True), passes(case, False)
            found[case.name] = {"alone": alone, "with_host": together, "constants": ours}
            if len({node.op_type for node in case.model.graph.node}) == 1:
                operators[case.model.graph.node[0].op_type].append(PASSED in (alone, ours))
    counts = collections.Counter((rule, outcome) for one in found.values() for rule, outcome in one.items())
    whole = sum(map(all, operators.values()))
    titles = {
        "alone": "tests with all inputs open, on the core alone",
        "with_host": "the same, with the host",
        "constants": "tests with constants in place of some inputs, on the core alone",
    }
    rows = [[title, *(counts[rule, outcome] for outcome in (PASSED, WRONG)), len(found)] for rule, title in titles.items()]
    rows.append(["operators with all of their tests passed, on the core alone", whole, "", len(operators)])
    publish("onnx-backend", ["rule", "passed", "wrong", "of"], rows, {"tests": found, "operators": operators}, as_json, write)

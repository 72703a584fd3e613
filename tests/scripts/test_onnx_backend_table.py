"""Tests of the count of the onnx package's tests by ONNX' interface of backends."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.scripts.benchmark.onnx_backend import PASSED, REFUSED, WRONG, passes
from amaranth_tpu.sim.golden.arithmetic import bfloat16

X = np.array([[1.0, 2.0, -4.0]], np.float32)


def _case(operator, wanted):
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3))] for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return SimpleNamespace(model=model, data_sets=[([X], [wanted])], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    "operator, wanted, strict, outcome",
    [
        ("Relu", np.maximum(X, 0), True, PASSED),
        ("Relu", np.maximum(X, 0) * 1.01, True, PASSED),  # bfloat16's tolerance
        ("Relu", np.maximum(X, 0) + 0.1, True, WRONG),
        ("Relu", np.maximum(X, 0)[0], True, WRONG),
        ("Relu", np.where(X < 0, np.nan, X), True, WRONG),
        ("Sin", np.sin(X), True, REFUSED),
        ("Sin", np.sin(X), False, PASSED),
    ],
)
def test_outcome_of_a_test(operator, wanted, strict, outcome):
    assert passes(_case(operator, wanted.astype(np.float32)), strict) == outcome


def test_bfloat16_has_a_tolerance():
    """A result in bfloat16 may differ by its rounding, as others may."""
    assert passes(_case("Relu", (np.maximum(X, 0) * 1.01).astype(bfloat16)), True) == PASSED
    assert passes(_case("Relu", (np.maximum(X, 0) * 1.1).astype(bfloat16)), True) == WRONG

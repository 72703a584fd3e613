"""Tests of ONNX' interface of backends: the official runner, exact nodes, refusals, and inputs that only the host takes."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.tpu.onnx_backend import Backend
from onnx_models import Builder, integers, weights


def test_outputs_are_in_the_order_of_the_file(rng, tmp_path):
    """Open sizes come from the inputs, for several inputs of a model that is divided."""
    b = Builder(["rows", 4])
    b.inputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"]))
    first = b("Gemm", weights(rng, 4, 4))
    b.node("Concat", [b.node("Sin", [first]), "y"], axis=1)
    model = infer_shapes(b.model(outputs=[b.last, first]))
    for rows, columns in ((2, 3), (3, 2)):
        x, y = integers(rng, rows, 4), integers(rng, rows, columns)
        found = Backend.run_model(model, [x, y])
        assert found[0].shape == (rows, 4 + columns) and found[1].shape == (rows, 4)
        np.testing.assert_array_equal(found[0][:, 4:], y)
        np.testing.assert_allclose(found[0][:, :4], np.sin(found[1]), rtol=1e-6)


def test_values_that_are_not_finite_are_computed_by_the_host():
    found = Backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.array([[np.inf, np.nan, -1]], np.float32)])
    np.testing.assert_array_equal(found[0], np.array([[np.inf, np.nan, 0]], np.float32))


def test_device_and_strict_refusal(rng):
    assert Backend.supports_device("CPU") and not Backend.supports_device("CUDA")
    b = Builder([2, 4])
    b("Sin")
    with pytest.raises(tpu.ModelError, match="operator Sin"):
        Backend.prepare(infer_shapes(b.model()), strict=True)


def test_old_and_sequence_inputs(rng):
    """A sequence of arrays of different shapes as an input, and an operator set that is converted."""
    x = [integers(rng, 4), integers(rng, 2, 3)]
    node = helper.make_node("SequenceAt", ["s", "place"], ["y"])
    kinds = [
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("place", TensorProto.INT64, []),
    ]
    graph = helper.make_graph([node], "g", kinds, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    np.testing.assert_array_equal(Backend.run_model(model, [x, np.array(1)])[0], x[1])
    np.testing.assert_array_equal(tpu.load(model).run({"s": x, "place": np.array(1)}).output, x[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package onnx, when it makes its data
def test_official_tests_of_nodes():
    """The runner of the package onnx accepts nodes that the core does not round, with its own tolerances."""
    import unittest

    from onnx.backend.test import BackendTest

    tests = BackendTest(Backend, __name__)
    tests.include(r"test_(sin(?!h)|top_k|nonzero|compress|isinf|cumsum|scatternd|onehot|argmax)[a-z0-9_]*_cpu")
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, tests.test_cases.values()))
    result = unittest.TestResult()
    suite.run(result)
    ran = result.testsRun - len(result.skipped)
    assert ran > 30 and not result.failures and not result.errors, result.failures[:1] + result.errors[:1]

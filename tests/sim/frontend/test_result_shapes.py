"""Tests that outputs have ONNX's own shape for an open, fixed or missing batch, and that a comparison with ONNX checks shapes."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.check.against_model import against_model
from onnx_models import Builder, close, reference, weights

INT64 = TensorProto.INT64
#: Final nodes of a model, on a tensor (batch, 4, 6), or (4, 6) without a batch.
CASES = {
    "ArgMax": [("Flatten", {"axis": 1}), ("ArgMax", {"axis": 1})],
    "ArgMax without its axis": [("Flatten", {"axis": 1}), ("ArgMax", {"axis": 1, "keepdims": 0})],
    "ArgMax in a vector": [("Flatten", {"axis": 1}), ("ArgMax", {"axis": -1}), ("Reshape", np.array([-1]), {})],
    "ArgMax with more axes": [("Flatten", {"axis": 1}), ("ArgMax", {"axis": 1}), ("Unsqueeze", np.array([0, 3]), {})],
    "rows": [("Reshape", np.array([-1, 3]), {})],
    "one row": [("Flatten", {"axis": 0})],
    "vector": [("Reshape", np.array([-1]), {})],
    "no axes of size 1": [("Reshape", np.array([0, 1, 4, 6]), {}), ("Squeeze", {})],
    "axes of size 1": [("Reshape", np.array([1, -1, 24, 1]), {})],
    "the same": [("Relu", {})],
}


def saved(rng, folder, case, batch):
    b = Builder([*batch, 4, 5])
    b("MatMul", weights(rng, 5, 6))
    for operator, *inputs, attributes in CASES[case]:
        b(operator, *inputs, **attributes)
    return b.save(folder, kinds=[INT64] if case.startswith("ArgMax") else [])


@pytest.mark.parametrize("batch", [["n"], [3], [1]], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_shape(rng, tmp_path, case, batch):
    path = saved(rng, tmp_path, case, batch)
    model = tpu.load(path)
    for count in [1, 3, 5] if batch == ["n"] else batch:
        x = rng.normal(size=(count, 4, 5)).astype(np.float32)
        right, run = reference(path, x), model.run(x)
        assert run.output.shape == right.shape
        assert len(model.outputs[0].shape) == right.ndim or case == "no axes of size 1"
        assert model.predict(x, on="onnxruntime").shape == right.shape
        assert run.compare().error is None and run.compare(against="onnx").error is None
        if not case.startswith("ArgMax"):
            close(run.output, right)


def test_shape_without_a_batch(rng, tmp_path):
    b = Builder([5])
    b("MatMul", weights(rng, 5, 6))
    b("Reshape", np.array([2, 3]))
    path = b.save(tmp_path)
    model, x = tpu.load(path), rng.normal(size=5).astype(np.float32)
    assert model.predict(x).shape == reference(path, x).shape == model.outputs[0].shape == (2, 3)
    assert model.predict(np.stack([x, x])).shape == (2, 2, 3)
    b("ReduceSum", keepdims=0)
    assert isinstance(tpu.load(b.save(tmp_path)).predict(x), np.ndarray)  # also one number: onnxruntime takes no other


def test_comparison_sees_shapes(rng, tmp_path):
    """If the ONNX reader understood another output shape than onnxruntime returns, the comparison reports a reading error with
    both shapes."""
    model, x = tpu.load(saved(rng, tmp_path, "rows", ["n"])), rng.normal(size=(3, 4, 5)).astype(np.float32)
    run = model.run(x)
    (output,) = model.network.origin.outputs
    other = replace(output, shapes=replace(output.shapes, dims=(24,)))
    network = replace(model.network, origin=replace(model.network.origin, outputs=(other,)))
    error = against_model(network, run.rows, run.result.logits).error
    assert "gives the shape (24, 3) for 3 samples, the compiler understood (72,): the model was read wrongly" in error

"""Tests of layers `x * scale + shift` that are combined with the weights before them: the same results before and after."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_tpu.sim.export.affine_layers import Affine, fold_affine
from onnx_models import Builder, reference, weights


def _conv(b, rng, *, group=1, bias=False, channels=4):
    kernel = [b.constant(weights(rng, channels, channels // group, 3, 3), "w")]
    return b("Conv", *kernel, *([b.constant(weights(rng, channels), "b")] if bias else []), group=group, pads=[1] * 4)


def _transposed(b, rng):
    """Channels last, with the bias behind the convolution, as Keras exports it."""
    b("Transpose", perm=[0, 2, 3, 1])
    b("Transpose", perm=[0, 3, 1, 2])
    _conv(b, rng)
    b("Transpose", perm=[0, 2, 3, 1])
    b("Add", b.constant(weights(rng, 4), "b"))


def _transposed_conv(b, rng):
    b("ConvTranspose", b.constant(weights(rng, 4, 5, 2, 2), "w"), b.constant(weights(rng, 5), "b"), strides=[2, 2])


def _gemm(b, rng, transposed):
    b("Flatten")
    kernel = weights(rng, 5, 100)
    b("Gemm", b.constant(kernel if transposed else np.ascontiguousarray(kernel.T), "w"), transB=int(transposed))


def _matmul(b, rng):
    b("Flatten")
    b("MatMul", b.constant(weights(rng, 100, 5), "w"))
    b("Add", b.constant(weights(rng, 5), "b"))


def _branch(b, rng):
    """The convolution is read by another operator, too."""
    first = _conv(b, rng)
    b("Relu")
    b("Add", first)
    b("Relu")
    b.last = first


def _scaled_gemm(b, rng):
    b("Flatten")
    b("Gemm", b.constant(weights(rng, 100, 5), "w"), b.constant(weights(rng, 5), "b"), alpha=0.5)


def _rows_of_table(b, rng):
    """An Add of other numbers than one per channel."""
    _conv(b, rng)
    b("Add", weights(rng, 1, 4, 5, 5))


#: name -> (layers before, axis of the channels, rank, channels, are combined with weights)
CASES = {
    "conv": (_conv, 1, 4, 4, True),
    "conv with bias": (lambda b, rng: _conv(b, rng, bias=True), 1, 4, 4, True),
    "grouped": (lambda b, rng: _conv(b, rng, group=2, bias=True), 1, 4, 4, True),
    "depthwise": (lambda b, rng: _conv(b, rng, group=4), 1, 4, 4, True),
    "channels last": (_transposed, 3, 4, 4, True),
    "transposed conv": (_transposed_conv, 1, 4, 5, True),
    "gemm": (lambda b, rng: _gemm(b, rng, False), 1, 2, 5, True),
    "transposed gemm": (lambda b, rng: _gemm(b, rng, True), 1, 2, 5, True),
    "matmul": (_matmul, 1, 2, 5, True),
    "behind a branch": (_branch, 1, 4, 4, False),
    "first": (lambda b, rng: None, 1, 4, 4, False),
    "first, channels last": (lambda b, rng: b("Transpose", perm=[0, 2, 3, 1]), 3, 4, 4, False),
    "rows": (lambda b, rng: b("Flatten"), 1, 2, 100, False),
    "scaled gemm": (_scaled_gemm, 1, 2, 5, False),
    "behind a table": (_rows_of_table, 1, 4, 4, False),
    "other axis": (_conv, 3, 4, 5, False),
    "three axes": (lambda b, rng: b("Reshape", np.array([0, 0, -1])), 1, 3, 4, False),
}


def _model(rng, folder, before, axis, rank, channels, behind):
    b = Builder(["batch", 4, 5, 5])
    before(b, rng)
    shape = [1] * rank
    shape[axis] = channels
    b("Mul", b.constant(rng.normal(size=shape).astype(np.float32), "scale"))
    b("Add", b.constant(rng.normal(size=shape).astype(np.float32), "shift"))
    if behind:  # zeros around the shifted values: a shift is not a bias of this convolution
        b("Conv", weights(rng, 3, channels, 3, 3), pads=[1] * 4)
    return b.save(folder)


@pytest.mark.parametrize("name", CASES)
def test_layer_is_rewritten(rng, tmp_path, name):
    """The results equal the Mul and the Add, which are gone. The weights are known to be combined."""
    before, axis, rank, channels, is_folded = CASES[name]
    path = _model(rng, tmp_path, before, axis, rank, channels, behind=rank == 4 and axis == 1)
    x = rng.normal(size=(3, 4, 5, 5)).astype(np.float32)
    wanted, model = reference(path, x), onnx.load(path)
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    folds = fold_affine(model, [Affine("scale", "shift", axis)])
    assert not any(node.op_type == "Mul" for node in model.graph.node)
    path.write_bytes(model.SerializeToString())
    np.testing.assert_allclose(reference(path, x), wanted, rtol=1e-4, atol=1e-4)
    made = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    assert len(folds) == is_folded
    for fold in folds:
        assert (fold.weights, fold.bias) == ("w", "b" if "b" in arrays else None) and not {"b", "scale"} & set(made)
        np.testing.assert_allclose(made["w"], arrays["w"] * fold.factor, rtol=1e-6)
        assert made["shift"].size == channels


def test_layer_stays_if_its_constants_are_shared(rng, tmp_path):
    """A layer that is called twice, and the one whose product another operator reads, stay as they are."""
    for kind in ("scale", "product"):
        b = Builder(["batch", 4, 5, 5])
        scale, shift = (b.constant(weights(rng, 1, 4, 1, 1), name) for name in ("scale", "shift"))
        first = b("Mul", scale)
        b("Add", shift)
        b("Mul", scale) if kind == "scale" else b("Add", first)
        model = b.model()
        before = model.SerializeToString()
        assert fold_affine(model, [Affine("scale", "shift", 1)]) == [] and model.SerializeToString() == before


def test_kept_weights_are_not_combined(rng, tmp_path):
    path = _model(rng, tmp_path, _conv, 1, 4, 4, behind=False)
    model = onnx.load(path)
    kernel = numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "w"))
    assert fold_affine(model, [Affine("scale", "shift", 1)], {"w"}.__contains__) == []
    assert (numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "w")) == kernel).all()


def test_two_layers_in_a_row(rng, tmp_path):
    """Weights take one scale. The second layer is a convolution of its own, with its own scale and shift."""
    b = Builder(["batch", 4, 5, 5])
    _conv(b, rng, bias=True)
    for layer in "12":
        for operator, kind in (("Mul", "scale"), ("Add", "shift")):
            b(operator, b.constant(rng.normal(size=(1, 4, 1, 1)).astype(np.float32), kind + layer))
    path, x = b.save(tmp_path), rng.normal(size=(3, 4, 5, 5)).astype(np.float32)
    wanted, model = reference(path, x), onnx.load(path)
    folds = fold_affine(model, [Affine(f"scale{layer}", f"shift{layer}", 1) for layer in "12"])
    assert [fold.layer.scale for fold in folds] == ["scale1"]
    path.write_bytes(model.SerializeToString())
    np.testing.assert_allclose(reference(path, x), wanted, rtol=1e-4, atol=1e-4)

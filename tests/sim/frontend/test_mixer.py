"""Tests of dense layers along any axis (`sim/frontend/index/blocks.py`), alternating between channels and positions as in an
MLP-Mixer."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN
from amaranth_tpu.sim import tpu
from onnx_models import Builder, check_graph, integers, reference, weights


def along_positions(b, last, first, second):
    """Appends two dense layers with a Relu between them along the axis of positions, and returns the result's name."""
    b.node("Transpose", [last], perm=[0, 2, 1])
    b("MatMul", first)
    b("Relu")
    b("MatMul", second)
    return b("Transpose", perm=[0, 2, 1])


def mixer(rng, positions, channels, hidden, make=weights):
    b = Builder(["n", positions, channels])
    first, second = make(rng, positions, hidden), make(rng, hidden, positions)
    last = b.node("Add", ["x", along_positions(b, "x", first, second)])
    b.node("MatMul", [last, make(rng, channels, hidden)])
    b("Relu")
    b("MatMul", make(rng, hidden, channels))
    last = b.node("Add", [b.last, last])
    b.node("Sub", [last, along_positions(b, last, second.T.copy(), first.T.copy())])
    b("ReduceMean", axes=[1], keepdims=0)
    b("MatMul", make(rng, channels, 3))
    return b


@pytest.mark.parametrize("positions, channels, hidden", [(4, 6, 5), (16, 100, 8)])
def test_mixer(rng, tmp_path, positions, channels, hidden):
    """An MLP-Mixer gives the same results as onnxruntime. Each layer is one stage, plus a copy where a layer needs its operand
    transposed."""
    x = rng.normal(size=(3, positions, channels)).astype(np.float32)
    check_graph(mixer(rng, positions, channels, hidden).save(tmp_path), x, stages=13)
    assert tpu.load(tmp_path / "model.onnx").compare(x).error is None


def test_integers_are_exact(rng, tmp_path):
    """Layers along positions give exactly onnxruntime's results for small integers, which are not rounded."""
    for shape in ((4, 6), (6, 4), (3, 3)):
        b = Builder(["n", *shape])
        start = b.node("MatMul", ["x", integers(rng, shape[1], shape[1], limit=1)])
        one, two = integers(rng, shape[0], 5, limit=1), integers(rng, 5, shape[0], limit=1)
        for operator in ("Add", "Sub"):
            for turned in (False, True):
                moved = along_positions(b, start, one, two)
                b.node(operator, [moved, start] if turned else [start, moved])
                path, x = b.save(tmp_path), integers(rng, 3, *shape, limit=1)
                np.testing.assert_array_equal(
                    tpu.load(path).predict(x), reference(path, x), err_msg=f"{shape} {operator} {turned}"
                )
        b("ReduceSum", np.array([1]), keepdims=1)
        path = b.save(tmp_path)
        np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x))


def test_layers_on_patches_of_an_image(rng, tmp_path):
    """Dense layers on channels and then on pixels of a convolution's patches give the same results as onnxruntime."""
    b = Builder(["n", 2, 4, 4])
    b("Conv", weights(rng, 6, 2, 2, 2), strides=[2, 2])
    b("Reshape", np.array([0, 6, 4]))
    b("MatMul", weights(rng, 4, 5))
    b("Relu")
    b("MatMul", weights(rng, 5, 4))
    b("ReduceMean", axes=[2], keepdims=0)
    check_graph(b.save(tmp_path), rng.normal(size=(3, 2, 4, 4)).astype(np.float32))


@pytest.mark.slow
def test_core(rng, tmp_path):
    model, x = tpu.load(mixer(rng, 3, 4, 3).save(tmp_path)), rng.normal(size=(2, 3, 4)).astype(np.float32)
    core = tpu.Config(n=2, unified_buffer_depth=256, accumulator_depth=16, bias_depth=16, **PLAIN)
    for on in ("model", "icarus"):
        np.testing.assert_array_equal(model.predict(x, on, core=core), model.predict(x))

"""Tests of operators that move single values by constant indices (`sim/frontend/operators/moves.py`), against numpy."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from amaranth_tpu.sim import tpu
from onnx_models import Builder, integers, reference, refused

HALF = np.array(0.5, np.float32)


def found(tmp_path, x, operator, *inputs, opset=18, batch=None, domain="", **attributes):
    """Returns the results of one operator on halves of whole numbers, which are exact."""
    b = Builder([batch or x.shape[0], *x.shape[1:]], opset=opset)
    b("Mul", HALF)
    b(operator, *inputs, name="odd", domain=domain, **attributes)
    return tpu.load(b.save(tmp_path), strict=True).predict(2 * x, check=False)


@pytest.mark.parametrize("batch", [None, "n"])
def test_axes_of_a_sample(rng, tmp_path, batch):
    """Tile, Compress, CenterCropPad and ReverseSequence along one axis of each sample."""
    x, axis = integers(rng, 2, *rng.integers(2, 6, 3)), int(rng.integers(1, 4))
    size = x.shape[axis]
    repeats = [1 + 2 * (one == axis) for one in range(4)]
    assert (found(tmp_path, x, "Tile", np.array(repeats), batch=batch) == np.tile(x, repeats)).all()
    flags = np.arange(size + 1 - int(rng.integers(0, 2))) % size > 0
    flags[size:] = False
    wanted = np.compress(flags, x, axis=axis)
    assert (found(tmp_path, x, "Compress", flags, axis=axis - 4, batch=batch) == wanted).all()
    lengths = np.full(2, int(rng.integers(1, size + 1)))
    wanted = np.moveaxis(x, axis, 0).copy()
    wanted[: lengths[0]] = wanted[: lengths[0]][::-1]
    if batch is None:
        got = found(tmp_path, x, "ReverseSequence", lengths, batch_axis=0, time_axis=axis)
        assert (got == np.moveaxis(wanted, 0, axis)).all()
    for target in range(1, 9):
        cut, missing = max(size - target, 0) // 2, max(target - size, 0)
        wanted = np.moveaxis(x, axis, 0)[cut : cut + target]
        wanted = np.pad(wanted, [(missing // 2, missing - missing // 2), *[(0, 0)] * 3])
        got = found(tmp_path, x, "CenterCropPad", np.array([target]), axes=[axis], batch=batch)
        assert (got == np.moveaxis(wanted, 0, axis)).all()


def test_elements(rng, tmp_path):
    """Elements and rows are gathered, written and added at constant places, also counted from the end."""
    x, axis = integers(rng, 1, 4, 5), int(rng.integers(1, 3))
    size, count = x.shape[axis], 3
    shape = [count if one == axis else have for one, have in enumerate((1, 3, 4))]
    grid = np.indices([size if one == axis else have for one, have in enumerate(shape)])[axis]
    places = rng.permuted(grid, axis=axis).take(range(count), axis=axis)
    signed = np.where(rng.random(places.shape) < 0.5, places, places - size)
    there = list(np.indices(shape))
    there[axis] = places
    got = found(tmp_path, x, "GatherElements", signed, axis=axis)
    assert (got == x[tuple(there)]).all()
    updates = integers(rng, *shape)
    for opset, operator in ((18, "ScatterElements"), (10, "Scatter")):
        wanted = x.copy()
        wanted[tuple(there)] = updates
        assert (found(tmp_path, x, operator, signed, updates, axis=axis, opset=opset) == wanted).all()
    wanted = x.copy()
    wanted[tuple(there)] += updates
    assert (found(tmp_path, x, "ScatterElements", signed, updates, axis=axis, reduction="add") == wanted).all()
    rows, updates = rng.permutation(4)[:2], integers(rng, 2, 5)
    index = np.stack([np.zeros(2, int), rows - 4], axis=1)
    wanted = x.copy()
    wanted[0, rows] = updates
    assert (found(tmp_path, x, "ScatterND", index, updates) == wanted).all()


def test_values_of_two_tensors(rng, tmp_path):
    """Updates are a tensor too, or the data are constant."""
    x, rows = integers(rng, 1, 4, 3), rng.permutation(4)[:2]
    index, stored = np.stack([np.zeros(2, int), rows], axis=1), integers(rng, 1, 4, 3)
    for adds in (False, True):
        b = Builder([1, 4, 3], opset=18)
        half = b("Mul", HALF)
        other = b.node("Squeeze", [b.node("Slice", [b("Relu"), *map(np.array, ([0], [2], [1]))]), np.array([0])])
        kind = {"reduction": "add"} if adds else {}
        b.node("ScatterND", [half, index, other], **kind)
        wanted, given = x.copy(), np.maximum(x, 0)[0, :2]
        wanted[0, rows] = wanted[0, rows] + given if adds else given
        assert (tpu.load(b.save(tmp_path), strict=True).predict(2 * x, check=False) == wanted).all()
        b.node("ScatterND", [stored, index, other], **kind)
        wanted = stored.copy()
        wanted[0, rows] = wanted[0, rows] + given if adds else given
        assert (tpu.load(b.save(tmp_path), strict=True).predict(2 * x, check=False) == wanted).all()


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_of_a_cache(rng, tmp_path, mode):
    """TensorScatter against the interpreter of the package onnx, in its definition's own shapes."""
    cache, update = integers(rng, 1, 2, 5, 3), integers(rng, 1, 2, 2, 3)
    first = np.array([int(rng.integers(0, 4 if mode == "linear" else 5))])
    entries = [helper.make_tensor_value_info(name, TensorProto.FLOAT, one.shape) for name, one in (("x", cache), ("u", update))]
    b = Builder(cache.shape, opset=24)
    b.inputs = entries
    half = b.node("Mul", ["x", HALF])
    b.node("TensorScatter", [half, b.node("Mul", ["u", HALF]), first], mode=mode)
    feeds = {"x": 2 * cache, "u": 2 * update}
    (wanted,) = ReferenceEvaluator(b.model(ir_version=10)).run(None, feeds)
    got = tpu.load(b.save(tmp_path, ir_version=10), strict=True).predict(feeds, check=False)
    assert (got == wanted).all()


def test_features(rng, tmp_path):
    """ArrayFeatureExtractor of a tensor picks columns; it once gave names of classes."""
    x, places = integers(rng, 3, 6), rng.integers(0, 6, 4)
    assert (found(tmp_path, x, "ArrayFeatureExtractor", places, domain="ai.onnx.ml") == x[:, places]).all()
    b = Builder(["n", 6])
    b("ArrayFeatureExtractor", np.array([6]), name="odd", domain="ai.onnx.ml")
    refused(b.save(tmp_path), "node 'odd'", "its indices must be constant, and below 6")


#: name -> (words of the error, shape of the input, operator, inputs after the first, attributes)
REFUSED = {
    "repeats of the batch": ("the batch", ["n", 4], "Tile", [np.array([2, 1])], {}),
    "repeats of none": ("do not fit", ["n", 4], "Tile", [np.array([1, 0])], {}),
    "nothing selected": ("selects nothing", ["n", 4], "Compress", [np.zeros(4, bool)], {"axis": 1}),
    "selection of the batch": ("whole batch", ["n", 4], "Compress", [np.ones(4, bool)], {}),
    "batch cut": ("the batch", ["n", 4], "CenterCropPad", [np.array([1, 4])], {}),
    "reversed batch": ("the batch", ["n", 4], "ReverseSequence", [np.array([2, 2])], {"batch_axis": 1, "time_axis": 0}),
    "elements of a batch": ("whole batch", ["n", 4], "GatherElements", [np.zeros((2, 4), int)], {}),
    "index twice": ("occurs twice", [1, 4], "ScatterElements", [np.zeros((1, 2), int), np.ones((1, 2), np.float32)], {"axis": 1}),
    "index beyond": ("beyond its axis", [1, 4], "GatherElements", [np.full((1, 2), 4)], {"axis": 1}),
    "largest": (
        "must be none or add",
        [1, 4],
        "ScatterElements",
        [np.zeros((1, 1), int), np.ones((1, 1), np.float32)],
        {"axis": 1, "reduction": "max"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case):
    words, shape, operator, inputs, attributes = REFUSED[case]
    b = Builder(shape, opset=18)
    b("Mul", HALF)
    b(operator, *inputs, name="odd", **attributes)
    refused(b.save(tmp_path), f"operator {operator}, node 'odd'", words)


def test_vector_by_matrices(rng, tmp_path):
    """A vector times several constant matrices, and a transposed left operand of Gemm."""
    a, b_ = integers(rng, 4), integers(rng, 2, 3, 4, 5)
    b = Builder([4])
    b("MatMul", b_)
    path = b.save(tmp_path)
    assert (tpu.load(path, strict=True).predict(a) == np.matmul(a, b_)).all()
    a, weights, bias = integers(rng, 4, 3), integers(rng, 4, 5), integers(rng, 3, 1)
    b = Builder([4, 3])
    b("Gemm", weights, bias, transA=1)
    assert (tpu.load(b.save(tmp_path), strict=True).predict(a) == a.T @ weights + bias).all()


@pytest.mark.parametrize("operator", ["Add", "Mul", "Max"])
def test_broadcast_of_four_axes(rng, tmp_path, operator):
    """Two tensors of a common shape of four axes are operands of one operator."""
    x = integers(rng, 1, 3, 2, 1, 4)
    b = Builder([1, 3, 2, 1, 4])
    half = b("Mul", HALF)
    other = b.node("Transpose", [b.node("Slice", [b("Relu"), *map(np.array, ([0], [1], [1]))])], perm=[0, 1, 2, 4, 3])
    b.node(operator, [half, other])
    path = b.save(tmp_path)
    assert (tpu.load(path, strict=True).predict(2 * x) == reference(path, 2 * x)).all()

"""Tests of the batch axis and of shapes computed from its size, on graphs with coinciding sizes, against onnxruntime."""

from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnx_models import Builder, refused
from seeds import seed
from shape_graphs import ShapeGraph, compare

FLOAT = TensorProto.FLOAT


def _random(number, start, folder):
    rng = np.random.default_rng([start, number])
    samples, first = int(rng.choice([3, 3, 2, 1])), str(rng.choice(["open", "open", "fixed"]))
    graph = ShapeGraph(rng, samples, first)
    graph.finish(int(rng.integers(1, 7)))
    inputs = [graph.x, *(graph.sample(count) for count in (1, 2, 4) if first == "open")]
    return compare(graph.b.save(folder), inputs, graph.scale)


def test_random_graphs(tmp_path):
    start = seed()
    counts = Counter(_random(number, start, tmp_path) for number in range(100))
    assert min(counts["accepted"], counts["refused"]) >= 10, counts  # about a half each


# Cases: a model is built from steps (operator, inputs..., attributes) on "x"; "." is the last result, and "#0" the
# was made first. Lists of integers are constants, numbers of binary32 otherwise.


def number(value):
    return np.array(value, np.float32)


def build(shape, *steps, opset=18):
    b, names = Builder(shape, opset=opset), []
    for operator, *inputs in steps:
        attributes = inputs.pop() if inputs and isinstance(inputs[-1], dict) else {}
        inputs = [
            {"x": "x", "": "", ".": names[-1] if names else "x"}.get(i)
            if isinstance(i, str) and i[:1] != "#"
            else names[int(i[1:])]
            if isinstance(i, str)
            else np.array(i, np.int64)
            if isinstance(i, (list, int))
            else i
            for i in inputs
        ]
        names.append(b.node(operator, inputs, name=f"{operator}{len(names)}", **attributes))
    return b


OPEN, FIXED, ONE = ["n", 3, 3], [3, 3, 3], [1, 3, 3]
HALF = ("Mul", "x", number(0.5))
BATCH = (("Shape", "x"), ("Gather", ".", [0]))  # as a vector of one element
COUNT = (("Shape", "x"), ("Gather", ".", 0))  # as a scalar


def ones(*shape):
    return np.ones(shape, np.float32)


def filled(value):
    return {"value": helper.make_tensor("v", FLOAT, [1], [value])}


#: name -> (shape of the input, steps, words of the error, or None if the model is supported)
CASES = {
    # ---- values computed from the size of an open batch
    "divided by the batch": (OPEN, [HALF, *COUNT, ("Cast", ".", {"to": FLOAT}), ("Div", "#0", ".")], ["Div4", "open batch size"]),
    "divided by twice the batch": (
        OPEN,
        [HALF, *COUNT, ("Mul", 2, "."), ("Cast", ".", {"to": FLOAT}), ("Div", "#0", ".")],
        ["Div5", "open batch size"],
    ),
    "divided by all values": (OPEN, [HALF, ("Size", "x"), ("Cast", ".", {"to": FLOAT}), ("Div", "#0", ".")], ["Div3"]),
    "times the values of a sample": (
        OPEN,
        [HALF, *COUNT, ("Size", "x"), ("Div", ".", "#2"), ("Cast", ".", {"to": FLOAT}), ("Mul", "#0", ".")],
        None,
    ),
    "the batch at most 100": (
        OPEN,
        [HALF, *COUNT, ("Min", ".", 100), ("Cast", ".", {"to": FLOAT}), ("Add", "#0", ".")],
        ["Min3"],
    ),
    "a batch of one": (
        OPEN,
        [HALF, *COUNT, ("Equal", ".", 1), ("Cast", ".", {"to": FLOAT}), ("Add", "#0", ".")],
        ["Equal3", "compared"],
    ),
    "a negative batch": (OPEN, [HALF, *COUNT, ("Equal", ".", -1), ("Cast", ".", {"to": FLOAT}), ("Add", "#0", ".")], None),
    "the root of the batch": (OPEN, [HALF, *COUNT, ("Cast", ".", {"to": FLOAT}), ("Sqrt", "."), ("Mul", "#0", ".")], ["Sqrt4"]),
    "an index": (OPEN, [HALF, *COUNT, ("Gather", "#0", ".", {"axis": 1})], ["Gather3"]),
    "a range": (OPEN, [HALF, *COUNT, ("Range", 0, ".", 1), ("Gather", "#0", ".", {"axis": 1})], ["Range3"]),
    "an end": (OPEN, [HALF, *BATCH, ("Slice", "#0", [0], ".", [1])], ["Slice3"]),
    "a bound": (OPEN, [HALF, *COUNT, ("Cast", ".", {"to": FLOAT}), ("Clip", "#0", "", ".")], ["Clip4"]),
    "a condition": (OPEN, [HALF, *COUNT, ("Greater", ".", 2), ("Where", ".", "#0", number(1))], ["Greater3"]),
    "ones, added up": (
        OPEN,
        [HALF, ("Shape", "x"), ("ConstantOfShape", ".", filled(1.0)), ("ReduceSum", ".", {"keepdims": 0}), ("Div", "#0", ".")],
        ["ReduceSum3"],
    ),
    "another axis as long as the batch": (
        OPEN,
        [("ReduceMax", "x", [1]), *BATCH, ("Concat", [1], ".", [1], {"axis": 0}), ("Expand", "#0", ".")],
        ["Expand4", "cannot become (1, batch, 1)"],
    ),
    "a fixed batch as a number": (FIXED, [HALF, *COUNT, ("Cast", ".", {"to": FLOAT}), ("Div", "#0", ".")], None),
    "a batch of one as a number": (ONE, [HALF, ("Size", "x"), ("Cast", ".", {"to": FLOAT}), ("Div", "#0", ".")], None),
    # ---- shapes that keep the batch
    "at least one sample": (
        OPEN,
        [HALF, *BATCH, ("Max", ".", [1]), ("Concat", ".", [9], {"axis": 0}), ("Reshape", "#0", ".")],
        None,
    ),
    "at least two samples": (
        OPEN,
        [HALF, *BATCH, ("Max", ".", [2]), ("Concat", ".", [9], {"axis": 0}), ("Reshape", "#0", ".")],
        ["Max3"],
    ),
    "view": (OPEN, [HALF, *BATCH, ("Concat", ".", [-1], {"axis": 0}), ("Reshape", "#0", ".")], None),
    "twice the batch": (
        OPEN,
        [
            ("Concat", "x", "x", {"axis": 2}),
            *BATCH,
            ("Mul", ".", 2),
            ("Concat", ".", [3, 3], {"axis": 0}),
            ("Reshape", "#0", "."),
            ("Neg", "."),
        ],
        None,
    ),
    "expanded": (
        OPEN,
        [
            ("ReduceMax", "x", [2]),
            *BATCH,
            ("Concat", ".", [-1, 5], {"axis": 0}),
            ("Equal", ".", [-1, -1, -1]),
            ("Where", ".", [1, 1, 1], "#3"),
            ("Expand", "#0", "."),
        ],
        None,
    ),
    "zeros beside": (
        OPEN,
        [HALF, *BATCH, ("Concat", ".", [2, 3], {"axis": 0}), ("ConstantOfShape", "."), ("Concat", "#0", ".", {"axis": 1})],
        None,
    ),
    "ones added": (OPEN, [HALF, ("Shape", "."), ("ConstantOfShape", ".", filled(1.0)), ("Add", "#0", ".")], None),
    "zeros of one sample beside": (OPEN, [HALF, ("Concat", ".", 0 * ones(1, 2, 3), {"axis": 1})], ["Concat1", "do not fit"]),
    "ones for each pair of samples": (
        OPEN,
        [
            ("ReduceMax", "x", [1]),
            *BATCH,
            ("Concat", [1], ".", [3], {"axis": 0}),
            ("ConstantOfShape", ".", filled(1.0)),
            ("Add", "#0", "."),
        ],
        ["Add5", "another axis"],
    ),
    # ---- broadcasting, from the last axis on
    "maxima across samples": (
        FIXED,
        [("GlobalMaxPool", "x"), ("Reshape", ".", [3, 3]), ("Add", ".", "x")],
        ["Add2", "(batch of 3, 3) and (batch of 3, 3, 3)", "other samples"],
    ),
    "maxima across samples, open": (
        OPEN,
        [("GlobalMaxPool", "x"), ("Reshape", ".", [-1, 3]), ("Add", ".", "x")],
        ["Add2", "(batch, 3) and (batch, 3, 3)", "other samples"],
    ),
    "maxima in place": (OPEN, [("GlobalMaxPool", "x"), ("Add", ".", "x")], None),
    "maxima of all of it": (ONE, [("GlobalMaxPool", "x"), ("Reshape", ".", [1, 3]), ("Add", ".", "x")], None),
    "a constant of each sample": (OPEN, [HALF, ("Add", ".", ones(3, 1, 1))], ["Add1", "along the batch"]),
    "a constant of each sample, fixed": (
        FIXED,
        [("Conv", "x", ones(2, 3, 1)), ("Add", ".", ones(3, 1, 1))],
        ["Add1", "along the batch"],
    ),
    "a sample that grows": (OPEN, [("ReduceMax", "x", [2]), ("Add", ".", number([1, 2, 3, 4, 5]))], None),
    "an outer sum": (OPEN, [("ReduceMax", "x", [2]), ("ReduceMean", "x", [1]), ("Add", "#0", ".")], None),
    "more axes": (OPEN, [HALF, ("Add", ".", ones(1, 1, 1, 3))], None),
    "sizes that ONNX refuses": (OPEN, [HALF, ("Add", ".", ones(2))], ["Add1", "(batch, 3, 3) and (2) do not fit"]),
    # ---- the batch on another axis
    "away and back": (
        OPEN,
        [HALF, ("Transpose", ".", {"perm": [1, 0, 2]}), ("MatMul", ".", ones(3, 2)), ("Transpose", ".", {"perm": [1, 0, 2]})],
        None,
    ),
    "away": (OPEN, [HALF, ("Transpose", ".", {"perm": [1, 0, 2]})], ["Transpose1", "(3, batch, 3)"]),
    "turned, one number for each value": (
        OPEN,
        [
            HALF,
            ("Transpose", ".", {"perm": [1, 2, 0]}),
            ("BatchNormalization", ".", *[ones(3)] * 4),
            ("Add", ".", ones(3, 3, 1)),
            ("Transpose", ".", {"perm": [2, 0, 1]}),
        ],
        None,
    ),
    "channels that are samples": (OPEN, [HALF, ("Transpose", ".", {"perm": [1, 0, 2]}), ("Conv", ".", ones(3, 3, 1))], ["Conv2"]),
    "summed up before the batch": (
        OPEN,
        [HALF, ("Transpose", ".", {"perm": [1, 0, 2]}), ("ReduceSum", ".", [0], {"keepdims": 0}), ("ReduceSum", ".", [1])],
        None,
    ),
    "picked before the batch": (
        OPEN,
        [
            HALF,
            ("Transpose", ".", {"perm": [1, 0, 2]}),
            ("Gather", ".", [[0, 2], [1, 1]]),
            ("Transpose", ".", {"perm": [2, 0, 3, 1]}),
        ],
        None,
    ),
    "in rows": (
        OPEN,
        [
            ("Reshape", "x", [-1, 3]),
            ("MatMul", ".", ones(3, 2)),
            ("Relu", "."),
            ("Reshape", ".", [-1, 3, 2]),
            ("ReduceMax", ".", [1], {"keepdims": 0}),
        ],
        None,
    ),
    "in one row": (
        OPEN,
        [("MatMul", "x", ones(3, 2)), ("Reshape", ".", [1, -1]), ("ReduceSum", ".", [1])],
        ["ReduceSum2", "(1, batch * 6)"],
    ),
    "in three rows": (OPEN, [("MatMul", "x", ones(3, 2)), ("Reshape", ".", [3, -1]), ("ReduceSum", ".", [1])], ["Reshape1"]),
    "flat": (["n", 4], [("Flatten", "x", {"axis": 0}), ("MatMul", ".", ones(4, 2)), ("Add", ".", ones(1, 2))], None),
    "flat, of several samples": (
        [3, 4],
        [("Flatten", "x", {"axis": 0}), ("MatMul", ".", ones(4, 2))],
        ["MatMul1", "do not multiply"],
    ),
    "channels of several samples": (FIXED, [("Reshape", "x", [1, 9, 3]), ("Conv", ".", ones(2, 3, 1))], ["Conv1"]),
    "whole batch": (OPEN, [HALF, ("Slice", ".", [0], [(1 << 31) - 1], [0])], None),
    "a million samples": (OPEN, [HALF, ("Slice", ".", [0], [1_000_003], [0])], ["Slice1", "the batch"]),
    "backwards": (OPEN, [HALF, ("Slice", ".", [-1], [-(1 << 40)], [0], [-1])], ["Slice1", "the batch"]),
    "squeezed": (["n", 1, 4], [("Squeeze", "x"), ("MatMul", ".", ones(4, 2))], None),
    "squeezed, then counted": (["n", 1, 4, 4], [("Squeeze", "x"), ("ReduceMax", ".", [1])], ["ReduceMax1", "Squeeze"]),
    "squeezed by no axis": (["n", 1, 4], [("Squeeze", "x", []), ("MatMul", ".", ones(4, 2))], ["Squeeze0", "empty"]),
    "one sample, squeezed": ([1, 3, 3], [("Relu", "x"), ("Squeeze", "."), ("ReduceSum", ".", [0])], None),
    "side by side, squared": ([3, 3, 3, 2], [HALF, ("Concat", ".", "x", {"axis": 0}), ("Mul", ".", ".")], None),
    # ---- parameters
    "a Sum of a tensor twice": (OPEN, [HALF, ("Sum", ".", ".", number(1))], None),
    "a Sum of three": (OPEN, [HALF, ("Relu", "x"), ("Sum", "#0", ".", "x")], None),
    "a bound in a vector": (OPEN, [("Clip", "x", number([0]))], None),
    "bounds of each channel": (OPEN, [("Clip", "x", number([-1, 0, 0]))], ["Clip0", "one number"]),
    "Max of several constants": (OPEN, [("Max", "x", number([0, -1, 0]), number([-1, 0, 0]))], None),
    "Max of one": (OPEN, [HALF, ("Max", ".")], None),
    "slopes of another shape": (OPEN, [("ReduceMax", "x", [2]), ("PRelu", ".", ones(5))], ["PRelu1", "(5) does not fit"]),
    "a bias of another shape": (["n", 3], [("Gemm", "x", ones(3, 2), ones(1, 1, 2))], ["Gemm0", "(1, 1, 2)"]),
    "a bias of more rows": ([1, 3], [("Gemm", "x", ones(3, 2), ones(3, 2))], ["Gemm0", "bias of (3, 2)"]),
    "Squeeze of a size": (OPEN, [HALF, ("Squeeze", ".", [1])], ["Squeeze1", "is not 1"]),
    "an axis that is not there": (OPEN, [("ReduceMean", "x", [4])], ["ReduceMean0", "axis 4"]),
    "an axis twice": (OPEN, [HALF, ("Slice", ".", [1, 1], [3, 3], [1, -2])], ["Slice1", "twice"]),
    "reflected too far": (
        OPEN,
        [HALF, ("Pad", ".", [0, 0, 3, 0, 0, 0], {"mode": "reflect"})],
        ["Pad1", "too much for mode reflect"],
    ),
    "a result of the lowest": (OPEN, [HALF, ("Pad", ".", [0, 0, 1, 0, 0, 0], number(-np.inf))], ["Pad1", "lowest number"]),
    "backwards in steps": (OPEN, [HALF, ("Slice", ".", [-1], [-(1 << 40)], [-1], [-2])], None),
    "picked in two axes": (OPEN, [HALF, ("Gather", ".", [[0, -1], [2, 1]], {"axis": -2})], None),
    "no reduction": (OPEN, [HALF, ("ReduceSum", ".", np.array([], np.int64), {"noop_with_empty_axes": 1})], None),
    "a copied size, or none": (OPEN, [HALF, ("Reshape", ".", [0, 9], {"allowzero": 1})], ["Reshape1", "(0, 9)"]),
    "a window on one position": (
        ["n", 2, 1, 1],
        [("Conv", "x", number(np.arange(36).reshape(2, 2, 3, 3)), {"pads": [1] * 4})],
        None,
    ),
    # ---- blocks of pixels
    "depth to space": (
        ["n", 8, 2, 3],
        [HALF, ("DepthToSpace", ".", {"blocksize": 2}), ("Conv", ".", number(np.arange(24).reshape(3, 2, 2, 2) - 12))],
        None,
    ),
    "depth to space, channels first": (
        ["n", 8, 2, 3],
        [("DepthToSpace", "x", {"blocksize": 2, "mode": "CRD"}), ("Conv", ".", number(np.arange(24).reshape(3, 2, 2, 2)))],
        None,
    ),
    "space to depth": (
        ["n", 2, 4, 6],
        [HALF, ("SpaceToDepth", ".", {"blocksize": 2}), ("Conv", ".", number(np.arange(24).reshape(3, 8, 1, 1)))],
        None,
    ),
    "space to depth of one sample": ([1, 2, 2, 3], [HALF, ("SpaceToDepth", ".", {"blocksize": 1})], None),
    "channels for no whole block": (
        ["n", 6, 2, 3],
        [HALF, ("DepthToSpace", ".", {"blocksize": 2})],
        ["DepthToSpace1", "squared"],
    ),
    "rows for no whole block": (["n", 2, 3, 4], [HALF, ("SpaceToDepth", ".", {"blocksize": 2})], ["SpaceToDepth1", "multiples"]),
    "blocks of nothing": (["n", 2, 3, 4], [HALF, ("SpaceToDepth", ".", {"blocksize": 0})], ["SpaceToDepth1", "not positive"]),
    "blocks of three axes": (OPEN, [HALF, ("SpaceToDepth", ".", {"blocksize": 3})], ["SpaceToDepth1", "is not (batch"]),
    "blocks in no known order": (
        ["n", 8, 2, 3],
        [HALF, ("DepthToSpace", ".", {"blocksize": 2, "mode": "RCD"})],
        ["DepthToSpace1", "DCR or CRD"],
    ),
    # ---- softmax on the host
    "a part of the shares": (
        ["n", 4],
        [("MatMul", "x", np.eye(4, 3, dtype=np.float32)), ("Softmax", "."), ("Slice", ".", [1], [3], [1])],
        None,
    ),
    "shares of one": (["n", 4], [HALF, ("Unsqueeze", ".", [1]), ("Softmax", ".", {"axis": 1})], None),
    "shares of each row": (OPEN, [("MatMul", "x", ones(3, 3)), ("Softmax", "."), ("Flatten", ".")], None),
    "shares of all": (OPEN, [("MatMul", "x", ones(3, 3)), ("Flatten", "."), ("Softmax", ".")], None),
    "shares of all, and more": (OPEN, [("MatMul", "x", ones(3, 3)), ("Flatten", "."), ("Softmax", "."), ("Relu", ".")], None),
}


@pytest.mark.parametrize("case", CASES)
def test_case(tmp_path, case):
    shape, steps, words = CASES[case]
    path = build(shape, *steps).save(tmp_path)
    if words is not None:
        return refused(path, *words)
    rng = np.random.default_rng(seed())
    inputs = [
        rng.integers(-3, 4, (count, *shape[1:])).astype(np.float32) for count in ((3, 1, 2, 5) if shape[0] == "n" else shape[:1])
    ]
    assert compare(path, inputs) == "accepted"

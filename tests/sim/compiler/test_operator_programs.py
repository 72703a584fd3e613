"""Tests that compiled programs of ONNX operators match the golden model bit for bit on the instruction-level model."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.frontend.load import load_network
from graphs import check
from onnx_models import Builder, weights
from suites import all_but, slow

_GATES = {"GRU": 3, "LSTM": 4}
_WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _recurrent(rng, operator, direction, steps, inputs, hidden):
    """Returns a builder of a recurrent layer with several steps, up to the outputs of all steps."""
    rows, ways = _GATES[operator] * hidden, _WAYS[direction]
    b = Builder(["n", steps, inputs], opset=14)
    b("Transpose", perm=[1, 0, 2])
    given = weights(rng, ways, rows, inputs) * 2, weights(rng, ways, rows, hidden) * 2, weights(rng, ways, 2 * rows)
    b(operator, *given, hidden_size=hidden, direction=direction)
    b("Transpose", perm=[2, 0, 1, 3])
    return b


@pytest.mark.parametrize(
    "operator, direction, n",
    all_but([("LSTM", "forward", 4), ("LSTM", "reverse", 16), ("GRU", "bidirectional", 4)], _GATES, _WAYS, (4, 8, 16)),
)
@pytest.mark.parametrize("most", [3, *slow(8)])
def test_recurrent_layers(rng, tmp_path, operator, direction, n, most):
    """Recurrent layers of several steps, whose stages need two function tables, match the golden model bit for bit. `most` is the
    largest number of steps."""
    steps, inputs, hidden = (int(rng.integers(least, end)) for least, end in ((2, most + 1), (1, most + 4), (2, 2 * most + 1)))
    graph = load_network(_recurrent(rng, operator, direction, steps, inputs, hidden).save(tmp_path))
    check(graph, from_preset("default", n=n), int(rng.integers(1, 4)), rng)


def _functions(*names):
    """Returns a function that makes a builder of dense layers with a function each."""

    def build(rng):
        b = Builder(["n", 5], opset=24)
        for name in names:
            b("MatMul", weights(rng, 5, 5))
            b(name, *([weights(rng, 5)] if name == "PRelu" else []))
        return b

    return build


def _shapes(rng):
    b = Builder(["n", 4, 4, 6], opset=18)
    x = b.node("Conv", [b.node("Identity", ["x"]), weights(rng, 8, 4, 3, 3)], pads=[1, 1, 1, 1])
    x = b.node("SpaceToDepth", [b.node("DepthToSpace", [x], blocksize=2)], blocksize=2)
    x = b.node("Dropout", [b.node("Pad", [x, np.array([0, 0, 1, 0, 0, 0, 0, 2])])])
    x = b.node("Slice", [x, np.array([1]), np.array([6]), np.array([3])])
    b.node("Split", [x, np.array([3, 5])], axis=1)
    b.nodes[-1].output[:] = ["left", "right"]
    x = b.node("Concat", [b.node("Gather", ["right", np.array([4, 1, 1])], axis=1), "left"], axis=1)
    x = b.node("CastLike", [b.node("Transpose", [x], perm=[0, 2, 3, 1]), np.zeros(1, np.float32)])
    row = b.node("Squeeze", [b.node("Slice", [x, *map(np.array, ([2], [3], [1]))]), np.array([1])])
    row = b.node("Unsqueeze", [row, np.array([1])])
    x = b.node("Add", [x, b.node("Expand", [row, np.array([1, 5, 5, 6])])])
    b.node("Flatten", [b.node("Cast", [b.node("Reshape", [x, np.array([0, 25, 6])])], to=TensorProto.FLOAT)])
    b("Gemm", weights(rng, 150, 3))
    return b


def _windows(rng):
    b = Builder(["n", 3, 6, 6], opset=13)
    b("Conv", weights(rng, 6, 3, 3, 3), weights(rng, 6), strides=[1, 2], pads=[1, 0, 0, 1], dilations=[1, 2])
    b("BatchNormalization", *(np.abs(weights(rng, 6)) + 0.5 for _ in range(4)))
    b("Conv", weights(rng, 6, 2, 3, 3), group=3, pads=[1, 1, 1, 1])
    b("MaxPool", kernel_shape=[2, 2])
    b("ConvTranspose", weights(rng, 6, 4, 2, 3), strides=[2, 1])
    b("AveragePool", kernel_shape=[3, 2], pads=[1, 0, 1, 1])
    x = b("Resize", "", np.array([1, 1, 2, 1], np.float32), mode="nearest")
    ends = [b.node(name, [x]) for name in ("GlobalMaxPool", "GlobalAveragePool")]
    ends += [b.node(name, [x], axes=[2, 3]) for name in ("ReduceMax", "ReduceMin", "ReduceMean")]
    ends += [b.node("ReduceSum", [x, np.array([2, 3])])]
    b.node("Flatten", [b.node("Concat", ends, axis=1)])
    b("Gemm", weights(rng, 24, 3))
    return b


def _old(rng):
    b = Builder(["n", 2, 3, 3], opset=9)
    b("Conv", weights(rng, 4, 2, 1, 1))
    b("Upsample", np.array([1, 1, 2, 2], np.float32))
    b("Conv", weights(rng, 2, 4, 3, 3))
    return b


def _norms(rng):
    b = Builder(["n", 6, 8], opset=23)
    b("MatMul", weights(rng, 8, 8))
    b("LayerNormalization", weights(rng, 8), weights(rng, 8))
    b("MatMul", weights(rng, 8, 8))
    b("RMSNormalization", weights(rng, 8))
    b("InstanceNormalization", weights(rng, 6), weights(rng, 6))
    b("MatMul", weights(rng, 8, 4))
    b("GroupNormalization", weights(rng, 6), weights(rng, 6), num_groups=2)
    return b


def _attention(rng):
    b = Builder(["n", 3, 4], opset=23)
    given = [b.node("Einsum", ["x", weights(rng, 4, 4)], equation="nij,jk->nik") for _ in range(3)]
    angles = rng.normal(size=(1, 3, 1)).astype(np.float32)
    cosine, sine = b.constant(np.cos(angles)), b.constant(np.sin(angles))
    given[:2] = [b.node("RotaryEmbedding", [one, cosine, sine], num_heads=2) for one in given[:2]]
    b.node("Attention", given, q_num_heads=2, kv_num_heads=2)
    return b


def _elements(rng):
    b = Builder(["n", 5], opset=18)
    one, two, three = (b.node("MatMul", ["x", weights(rng, 5, 5)]) for _ in range(3))
    made = b.node("Sub", [b.node("Sum", [one, two, three]), b.node("Mean", [one, b.node("Neg", [two])])])
    made = b.node("Mul", [b.node("Max", [made, three]), b.node("Min", [one, two])])
    made = b.node("Div", [made, b.node("Add", [b.node("Sigmoid", [two]), np.ones(1, np.float32)])])
    made = b.node("MatMul", [made, weights(rng, 5, 5)])
    made = b.node("Sqrt", [b.node("Abs", [made])])
    made = b.node("MatMul", [made, weights(rng, 5, 5)])
    made = b.node("Reciprocal", [b.node("Add", [b.node("Pow", [made, np.float32([2])]), np.ones(1, np.float32)])])
    made = b.node("MatMul", [made, weights(rng, 5, 5)])
    made = b.node("Log", [b.node("Add", [b.node("Exp", [made]), np.ones(1, np.float32)])])
    made = b.node("MatMul", [made, weights(rng, 5, 5)])
    b.node("Where", [b.node("Greater", [made, np.zeros(1, np.float32)]), made, b.node("Mul", [made, np.float32([0.25])])])
    b("LogSoftmax", axis=1)
    return b


def _masks(rng):
    b = Builder([1, 3, 4], opset=18)
    kinds = {"kept": TensorProto.BOOL, "ids": TensorProto.INT64}
    b.inputs += [helper.make_tensor_value_info(name, kind, [1, 3]) for name, kind in kinds.items()]
    kept = b.node("And", ["kept", b.node("Not", [b.node("Equal", ["ids", np.array(2)])])])
    kept = b.node("Or", [kept, b.node("Less", ["ids", np.array(1)])])
    values = b.node("MatMul", ["x", weights(rng, 4, 3)])
    hidden = b.node("Where", [b.node("Unsqueeze", [kept, np.array([1])]), values, np.float32([-np.inf])])
    shares = b.node("Softmax", [hidden], axis=-1)
    x = b.node("MatMul", [b.node("Where", [b.node("IsNaN", [shares]), np.float32([0]), shares]), weights(rng, 3, 5)])
    x = b.node("Div", [x, b.node("Cast", [b.node("Size", ["x"])], to=TensorProto.FLOAT)])
    x = b.node("ReduceMean", [x, np.array([1])], keepdims=0)
    b.node("Sub", [x, b.node("ReduceLogSumExp", [x, np.array([-1])])])
    return b


#: {name: function of a generator of random numbers that returns a builder of a model}.
MODELS = {
    "functions": _functions("Relu", "LeakyRelu", "PRelu", "Clip", "Abs", "Sigmoid", "Tanh", "Gelu", "HardSigmoid", "HardSwish"),
    "more functions": _functions("Mish", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Exp", "Erf", "Swish"),
    "shapes": _shapes,
    "windows": _windows,
    "old": _old,
    "norms": _norms,
    "attention": _attention,
    "elements": _elements,
    "masks": _masks,
}
_LARGE = {"norms", "attention", "windows"}  # their searches take seconds


@pytest.mark.parametrize(
    "name, n",
    [(name, 4) for name in MODELS]
    + slow(*((name, 16) for name in sorted(_LARGE)))
    + [(name, 16) for name in MODELS if name not in _LARGE],
)
def test_programs_of_operators(rng, tmp_path, name, n):
    """Each operator is in a program that matches the golden model bit for bit, among the other programs of a search."""
    graph = load_network(MODELS[name](rng).save(tmp_path))
    check(graph, from_preset("default", n=n), 2, rng)

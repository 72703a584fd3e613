"""Tests of operators on tensors that are joined from several nodes, applied slice by slice; onnxruntime judges all results."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.operators import pieces
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, close, integers, reference, weights

FLOAT = np.float32


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(pieces, "_MOST_WEIGHTS", 0)


def scales(rng, channels, make=weights):
    """Returns a builder whose last value (1, channels, 12 + 6) joins two results of different height and width."""
    b = Builder([1, 2, 5, 4])
    fine = b("Conv", make(rng, channels, 2, 2, 2), make(rng, channels))
    coarse = b.node("Conv", ["x", make(rng, channels, 2, 3, 3)])
    flat = [b.node("Reshape", [one, np.array([1, channels, -1])]) for one in (fine, coarse)]
    b.node("Concat", flat, axis=2)
    return b


def agree(b, rng, folder, x=None):
    path, x = b.save(folder), rng.normal(size=(1, 2, 5, 4)).astype(FLOAT) if x is None else x
    model = tpu.load(path)
    close(model.predict(x), reference(path, x))
    return model


def number(value):
    return np.array(value, FLOAT)


def _two(b, operator):
    joined = b.last
    one, two = (b.node("Slice", [joined, *(np.array([v]) for v in (first, first + 2, 1))]) for first in (0, 2))
    return b.node(operator, [one, two])


CASES = {
    "function": lambda b, rng: b("Sigmoid"),
    "scalar": lambda b, rng: b("Mul", number(3)),
    "constant of positions": lambda b, rng: b("Add", weights(rng, 1, 18)),
    "constant of channels": lambda b, rng: b.node("Sub", [weights(rng, 4, 1), b.last]),
    "constant of all values": lambda b, rng: b("Mul", weights(rng, 1, 4, 18)),
    "constant with more axes": lambda b, rng: b("Add", weights(rng, 1, 1, 4, 1)),
    "two slices": lambda b, rng: _two(b, "Sub"),
    "the larger of two": lambda b, rng: _two(b, "Max"),
    "product of two": lambda b, rng: _two(b, "Mul"),
    "square": lambda b, rng: b("Pow", number(2)),
    "slopes of channels": lambda b, rng: b("PRelu", weights(rng, 4, 1)),
    "softmax of channels": lambda b, rng: b("Softmax", axis=1),
    "masked softmax of positions": lambda b, rng: [
        b.node("Where", [np.arange(72).reshape(4, 18) % 5 > 2, number(-np.inf), b.last]),
        b("Softmax", axis=2),
    ],
    "masked softmax of channels": lambda b, rng: [
        b.node("Where", [np.arange(72).reshape(4, 18) % 5 > 2, number(-1e30), b.last]),
        b("Softmax", axis=1),
    ],
    "reversed": lambda b, rng: [b("Slice", *(np.array([v]) for v in (-1, -99, 2, -1))), b("Tanh")],
    "positions apart": lambda b, rng: [b("Slice", *(np.array([v]) for v in (1, 99, 2, 3))), b("Tanh")],
    "interleaved": lambda b, rng: [b("Gather", np.array([17, 0, 12, 3]), axis=2), b("Tanh")],
    "one part alone": lambda b, rng: [b("Slice", *(np.array([v]) for v in (13, 17, 2))), b("Tanh")],
    "padded": lambda b, rng: [b("Pad", np.array([0, 0, 1, 0, 0, 2])), b("Sigmoid")],
    "transposed": lambda b, rng: [b("Transpose", perm=[0, 2, 1]), b("Mul", weights(rng, 18, 4)), b("Softmax", axis=-1)],
    "dense layer": lambda b, rng: [b("Transpose", perm=[0, 2, 1]), b("MatMul", weights(rng, 4, 3))],
    "normalised": lambda b, rng: b("BatchNormalization", *(rng.uniform(0.5, 1.5, 4).astype(FLOAT) for _ in range(4))),
    "written function": lambda b, rng: b.node("Mul", [b.last, b("Sigmoid")]),
    "sum over positions": lambda b, rng: [b("Sigmoid"), b("ReduceSum", np.array([2]))],
}


@pytest.mark.parametrize("case", CASES)
def test_operators_on_joined_tensors(rng, tmp_path, case):
    b = scales(rng, 4)
    CASES[case](b, rng)
    try:
        agree(b, rng, tmp_path)
    except ModelError as error:
        assert case == "softmax of channels" and "node 'Softmax_" in str(error), error


def test_borders_that_differ(rng, tmp_path):
    """Both operands are joined, with different borders."""
    b = scales(rng, 3)
    one = b.last
    left = b.node("Conv", ["x", weights(rng, 3, 2, 1, 1)])
    left = b.node("Slice", [b.node("Reshape", [left, np.array([1, 3, -1])]), *(np.array([v]) for v in (0, 8, 2))])
    right = b.node("Reshape", [b.node("Conv", ["x", weights(rng, 3, 2, 1, 3)]), np.array([1, 3, -1])])
    b.node("Mul", [one, b.node("Concat", [left, right], axis=2)])
    agree(b, rng, tmp_path)


def test_decoded_boxes(rng, tmp_path):
    """The head of a detector: boxes as the mean of a distribution of distances, and scores."""
    b = scales(rng, 15)
    sizes = b.constant(np.array([12, 3]))
    b.nodes[-1].output[0] = "joined"
    b.node("Split", ["joined", sizes], axis=1)
    b.nodes[-1].output.append("scores")
    b("Reshape", np.array([1, 4, 3, 18]))
    b("Transpose", perm=[0, 2, 1, 3])
    b("Softmax", axis=1)
    b("Conv", np.arange(3, dtype=FLOAT).reshape(1, 3, 1, 1))
    b("Reshape", np.array([1, 4, 18]))
    middle = _two(b, "Add")
    boxes = b.node("Mul", [b.node("Add", [middle, weights(rng, 1, 2, 18)]), rng.choice([8, 16], (1, 18)).astype(FLOAT)])
    b.node("Concat", [boxes, b.node("Sigmoid", ["scores"])], axis=1)
    model = agree(b, rng, tmp_path)
    assert [stage.function.name for stage in model.network.stages].count("sigmoid") == 2  # one for each scale


def test_copies_are_exact(rng, tmp_path):
    b = scales(rng, 3, make=integers)
    b("Neg")
    b("Relu")
    path, x = b.save(tmp_path), integers(rng, 1, 2, 5, 4)
    np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x))

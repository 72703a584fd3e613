"""Tests that Max, Min and Mean of several tensors give the same results as onnxruntime where no result is rounded."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from onnx_models import Builder, check_graph, integers, reference, refused, weights

OPERATORS = ("Max", "Min", "Mean")


def exact(b, folder, x):
    path = b.save(folder)
    np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x), err_msg=str([n.op_type for n in b.nodes]))


@pytest.mark.parametrize("operator", OPERATORS)
def test_two_tensors(rng, tmp_path, operator):
    """Max, Min and Mean of two images, of two vectors, and of a tensor and its permutation give the same results as
    onnxruntime."""
    x = integers(rng, 3, 2, 4, 5)
    b = Builder(["n", 2, 4, 5])
    one, two = (b.node("Conv", ["x", integers(rng, 3, 2, 2, 2)]) for _ in range(2))
    b.node(operator, [one, two])
    exact(b, tmp_path, x)
    b("Relu")
    b("Conv", integers(rng, 2, 3, 2, 2, limit=1))
    check_graph(b.save(tmp_path), x)
    b = Builder(["n", 3, 4])
    turned = b.node("Transpose", [b.node("Reshape", ["x", np.array([0, 4, 3])])], perm=[0, 2, 1])
    b.node(operator, [b.node("Mul", ["x", np.array(-2, np.float32)]), turned])
    b("MatMul", integers(rng, 4, 2))
    exact(b, tmp_path, integers(rng, 3, 3, 4))


@pytest.mark.parametrize("operator", OPERATORS)
def test_several_tensors(rng, tmp_path, operator):
    """Max, Min and Mean of several tensors with broadcasting and constants give the same results as onnxruntime; a mean of four
    is exact."""
    b = Builder(["n", 4, 6])
    one, two = (b.node("MatMul", ["x", integers(rng, 6, 5)]) for _ in range(2))
    few = b.node("MatMul", ["x", integers(rng, 6, 1)])
    b.node(operator, [few, one, two, np.array(1, np.float32)])
    exact(b, tmp_path, integers(rng, 3, 4, 6))


def test_a_factor_for_each_position_is_not_copied_to_all_channels(rng, tmp_path):
    """The product of an image, after Relu, with one number for each position gives the same results as onnxruntime."""
    b = Builder(["n", 3, 4, 5])
    image, factor = (b.node("Conv", ["x", integers(rng, count, 3, 1, 1, limit=1)]) for count in (6, 1))
    b.node("Mul", [factor, b.node("Relu", [image])])
    exact(b, tmp_path, integers(rng, 2, 3, 4, 5, limit=2))
    network = load_network(b.save(tmp_path))
    (product,) = (stage for stage in network.stages if stage.times)
    assert network.tensors[product.times].channels == 1


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_numbers_of_any_size(tmp_path, operator):
    """Max and Min are exact for numbers of any size: no difference overflows, and no small number is lost beside a large one."""
    sizes = np.array([3e38, 1.5, 1e-3, 1e-30, 2.0**-126, 0], np.float32)
    values = np.concatenate([sizes, -sizes])
    x = np.stack(np.meshgrid(values, values), axis=-1).reshape(-1, 2)
    x = x.view(np.uint32) & np.uint32(0xFFFF0000)
    b = Builder(["n", 2])
    b.node(
        operator, [b.node("MatMul", ["x", np.array([[1], [0]], np.float32)]), b.node("Gemm", ["x", np.eye(2, 1, -1, np.float32)])]
    )
    exact(b, tmp_path, x.view(np.float32))


@pytest.mark.slow
def test_min_of_max_on_the_rtl(rng, tmp_path):
    """A Min of a Max matches the golden model bit for bit on the RTL, although Min negates its operands."""
    b = Builder(["n", 3])
    one, two = (b.node("MatMul", ["x", weights(rng, 3, 3)]) for _ in range(2))
    b.node("Min", [b.node("Max", [one, two]), "x"])
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(2, 3)).astype(np.float32)
    assert model.compare(x).error is None
    core = tpu.Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=8, **PLAIN | {"pooling": True})
    for on in ("model", "icarus"):
        np.testing.assert_array_equal(model.predict(x, on, core=core), model.predict(x))


def test_refused(rng, tmp_path):
    b = Builder(["n", 4])
    one, two = (b.node("MatMul", ["x", weights(rng, 4, 3)]) for _ in range(2))
    b.node("Max", [one, two, np.arange(3, dtype=np.float32)], name="odd")
    refused(b.save(tmp_path), "operator Max, node 'odd'", "one constant number")

"""Tests of models whose values are moved between layers, against onnxruntime: steps of time, heads, positions as channels."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from graphs import check
from onnx_models import Builder, check_graph, close, reference, weights


def _weights_of(graph):
    return sum(values.size for values in graph.constants.values())


def test_step_of_time(rng, tmp_path):
    """A dense layer that reads a column of an image has weights for this column alone."""
    b, columns = Builder(["n", 2, 3, 9]), 9
    b("Conv", weights(rng, 5, 2, 3, 3), pads=[1, 1, 1, 1])
    b("Reshape", np.array([0, 15, columns]))
    turned = b("Transpose", perm=[2, 0, 1])
    one, two = (b.node("Gemm", [b.node("Gather", [turned, np.array(at)], axis=0), weights(rng, 15, 4)]) for at in (3, 8))
    b.node("Add", [one, b.node("Tanh", [two])])
    path, x = b.save(tmp_path), rng.normal(size=(2, 2, 3, 9)).astype(np.float32)
    check_graph(path, x)
    assert _weights_of(load_network(path)) < 5 * 2 * 9 + 2 * 15 * 4 + 20


def test_scattered_values(rng, tmp_path):
    """A dense layer that reads one of 16 channels copies these values to a vector."""
    b = Builder(["n", 16, 8, 8])
    b("Conv", weights(rng, 16, 16, 1, 1))
    b("Slice", np.array([3]), np.array([4]), np.array([1]))
    b("Flatten")
    b("Gemm", weights(rng, 64, 20))
    path, x = b.save(tmp_path), rng.normal(size=(2, 16, 8, 8)).astype(np.float32)
    check_graph(path, x, stages=3)
    check(load_network(path), from_preset("default", n=4), 2, rng)
    assert _weights_of(load_network(path)) < 16 * 16 + 64 * 20 + 20


def test_results_that_are_only_moved(rng, tmp_path):
    """The host takes the results from the layer in another order, without a copy."""
    b = Builder(["n", 6, 12])
    b("MatMul", weights(rng, 12, 12))
    b("Reshape", np.array([0, 6, 3, 4]))
    b("Transpose", perm=[0, 2, 3, 1])
    b("Softmax", axis=3)
    b("Transpose", perm=[0, 3, 1, 2])
    path, x = b.save(tmp_path), rng.normal(size=(2, 6, 12)).astype(np.float32)
    graph = load_network(path)
    assert not any(term.copies for term in graph.stages[-1].terms)
    close(tpu.load(path).predict(x), reference(path, x))


@pytest.mark.parametrize("opset, axis", [(11, 1), (11, 2), (13, 2), (13, 1)])
def test_softmax_between_layers(rng, tmp_path, opset, axis):
    """A Softmax in the middle of a network may be over all values of a sample, over some axes, or over any axis."""
    b = Builder(["n", 3, 4, 5], opset=opset)
    b("MatMul", 3 * weights(rng, 5, 6))
    b("Softmax", axis=axis)
    b("MatMul", weights(rng, 6, 4))
    path, x = b.save(tmp_path), rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    check_graph(path, x)
    check(load_network(path), from_preset("transformer", n=4, normalize=False), 2, rng)


def test_factor_for_each_position(rng, tmp_path):
    """A constant with a factor for each value is one product, as in rotary embeddings."""
    b = Builder(["n", 12, 6])
    b("MatMul", weights(rng, 6, 6))
    b("Mul", weights(rng, 12, 6) + np.float32(1))
    b("MatMul", weights(rng, 6, 5))
    path, x = b.save(tmp_path), rng.normal(size=(2, 12, 6)).astype(np.float32)
    check_graph(path, x, stages=2)
    check(load_network(path), from_preset("transformer", n=4), 3, rng)


def test_bias_rows_of_a_part_of_a_sample(rng, tmp_path):
    """Masks that differ from position to position, and products with matrices of each sample, need no job of a whole sample."""
    b = Builder(["n", 12, 6])
    keys, values = (b.node("MatMul", ["x", weights(rng, 6, 8)]) for _ in range(2))
    b.node("MatMul", [b.node("MatMul", ["x", weights(rng, 6, 8)]), b.node("Transpose", [keys], perm=[0, 2, 1])])
    b("Add", np.where(np.tri(12), 0, -np.inf).astype(np.float32))
    b("Softmax", axis=-1)
    b("MatMul", values)
    graph = load_network(b.save(tmp_path))
    for depth in (32, 64):
        check(graph, from_preset("transformer", n=4, bias_depth=depth), int(rng.integers(1, 4)), rng)


def test_upper_bound_of_clip_counts_last(rng, tmp_path):
    b = Builder(["n", 6])
    b("MatMul", weights(rng, 6, 6))
    b("Clip", np.array(2, np.float32), np.array(-1, np.float32))
    b("MatMul", weights(rng, 6, 3))
    path, x = b.save(tmp_path), rng.normal(size=(2, 6)).astype(np.float32)
    close(tpu.load(path).predict(x), reference(path, x))

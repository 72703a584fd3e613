"""Tests that steps of ONNX models which mix convolutions with attention, norms and gates run on the instruction-level model with
the reference model's bits."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_graph
from amaranth_tpu.sim.golden.training import initial_state, step
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.reshapes import without_reshapes
from graphs import check
from mixed_models import MODELS, tokens, vision_transformer
from onnx_models import Builder, check_graph, weights
from training_steps import batch_of, run_steps


@pytest.mark.parametrize("name, n", [*((name, 4) for name in MODELS), ("patches", 8)])
def test_steps(rng, tmp_path, name, n):
    """With n = 8, no order is chosen in which the Softmax of the patches' scores precedes their sums."""
    training, optimizer = with_parameters(load_network(MODELS[name](rng).save(tmp_path))), Sgd(0.75)
    program = compile_step(training, optimizer, Config(n=n, training=True), 2)
    run_steps(program, training, optimizer, rng, 1)


@pytest.mark.parametrize("size, heads", [(4, 1), (6, 2), (8, 1)])
def test_tokens_of_a_step_are_patches_of_the_image(rng, tmp_path, size, heads):
    """The step's tokens have the positions of the image, whatever copies the graph has, and the graph's results."""
    path = vision_transformer(rng, size, heads=heads).save(tmp_path)
    graph = check_graph(path, rng.normal(0, 1, (3, 3, size, size)).astype(np.float32))
    made = without_reshapes(graph)
    assert len(graph.sampled) - len(made.sampled) >= 2 * heads
    assert (1, size**2 // 4) not in {made.tensors[name].shape[:2] for name in made.sampled}
    training, optimizer = with_parameters(graph), Sgd()
    x, targets = batch_of(training, 3, rng)
    found = step(training, initial_state(training, optimizer), optimizer, x, targets, 0.1).logits
    assert np.array_equal(found, run_graph(graph, x)) and found.any()


def test_tokens_of_pooled_images(rng, tmp_path):
    """If the tokens of an attention are the positions of a MaxPool, the program and a step have the results of the network."""
    b = Builder([None, 2, 4, 4], opset=17)
    x = b.node("Conv", ["x", weights(rng, 6, 2, 1, 1), weights(rng, 6)])
    x = tokens(b, b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2]), 6, 4)
    keys = b.node("Transpose", [x], perm=[0, 2, 1])
    shares = b.node("Softmax", [b.node("MatMul", [x, keys])], axis=-1)
    b.node("ReduceMean", [b.node("MatMul", [shares, x])], axes=[1], keepdims=0)
    b("Gemm", weights(rng, 6, 3), weights(rng, 3))
    graph = load_network(b.save(tmp_path))
    check(graph, from_preset("training", n=4), 2, rng)
    training = with_parameters(graph)
    x, targets = batch_of(training, 3, rng)
    assert np.array_equal(step(training, initial_state(training, Sgd()), Sgd(), x, targets, 0.1).logits, run_graph(graph, x))


def test_attention_to_other_positions(rng, tmp_path):
    """Queries are all positions of an image, keys the positions after pooling."""
    b = Builder(["n", 2, 4, 4])
    x = b.node("Conv", ["x", weights(rng, 6, 2, 1, 1), weights(rng, 6)])
    pooled = b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    queries, keys = tokens(b, x, 6, 16), b.node("Transpose", [tokens(b, pooled, 6, 4)], perm=[0, 2, 1])
    shares = b.node("Softmax", [b.node("MatMul", [queries, keys], name="scores")], axis=-1)
    b.node("ReduceMean", [shares], axes=[1], keepdims=0)
    b("Gemm", weights(rng, 4, 3), weights(rng, 3))
    training = with_parameters(load_network(b.save(tmp_path)))
    run_steps(compile_step(training, Sgd(), Config(n=4, training=True), 2), training, Sgd(), rng)

"""Tests of copies by strides: their description, and their programs, bit for bit against two golden models."""

from contextlib import nullcontext

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.refusals import check_derivatives
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.functions.functions import NONE, RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.steps import run_step
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.stage import Stage, Term
from amaranth_tpu.sim.ir.strided_copies import places_of, strided_copies
from graph_steps import inputs_of, kept_of, run_on_model
from graphs import check, random_values
from step_networks import Builder
from suites import slow


def _moved(rng, size):
    """Returns a random arrangement of some of `size` values: reshaped, transposed, cut, mirrored, repeated, padded."""
    index = np.arange(size)
    for _ in range(int(rng.integers(1, 4))):
        total, shape = index.size, []
        while total > 1 and len(shape) < 3:
            shape.append(int(rng.choice([count for count in range(1, total + 1) if total % count == 0])))
            total //= shape[-1]
        index = index.reshape(*shape, total).transpose(rng.permutation(len(shape) + 1))
        axis = int(rng.integers(index.ndim))
        kind = rng.integers(6)
        if kind < 3:
            first, step = int(rng.integers(index.shape[axis])), int(rng.choice([1, 1, 2, -1]))
            index = index.take(range(index.shape[axis])[first::step], axis=axis)
        elif kind == 3:
            index = np.concatenate([index, index.take([0], axis=axis)], axis=axis)
        elif kind == 4:
            index = np.pad(index, [(int(at == axis), 0) for at in range(index.ndim)], constant_values=-1)
    return index.reshape(-1)


def test_description(rng):
    """Boxes of strides describe any order of values, and few boxes describe an order of affine axes."""
    for _ in range(100):
        index = _moved(rng, int(rng.integers(1, 200)))
        assert np.array_equal(places_of(strided_copies(index), len(index)), index)
    heads = np.arange(8 * 6 * 4).reshape(8, 6, 4).transpose(1, 0, 2).reshape(-1)
    assert len(strided_copies(heads)) == 1
    assert strided_copies(rng.permutation(1 << 14)) is None


def _graph(rng):
    """Returns a layer, a copy of its results and of the input, and a layer."""
    graph, height, width, channels, outputs = Graph("copies"), *map(int, rng.integers(1, (5, 6, 20, 30)))
    x = graph.output = graph.add_input("input", (height, width, channels))
    graph.input_shape = (height * width * channels,)
    term = graph.term(x, "first", random_values(rng, (1, 1, channels, outputs), 0.5))
    y = graph.add_stage(Stage("y", (term,), (height, width), function=RELU if rng.random() < 0.3 else NONE), outputs)
    index = _moved(rng, height * width * (outputs + channels))
    if rng.random() < 0.3:  # positions and channels exchanged
        index = np.arange(height * width * outputs).reshape(-1, outputs).T.reshape(-1)
    shape = [int(index.size)]
    for _ in range(2):
        shape.insert(0, int(rng.choice([count for count in range(1, 9) if shape[0] % count == 0])))
        shape[1] //= shape[0]
    shape[2] = index.size // shape[0] // shape[1]
    one, terms, end = graph.constant("one", np.ones((1, 1, 1), bfloat16)), [], 0
    for name in (y, x):
        size = int(np.prod(graph.tensors[name].shape))
        copies = strided_copies(np.where((index >= end) & (index < end + size), index - end, -1))
        terms += [Term(name, one, copies=copies, fixed=True)] if copies else []
        end += size
    z = graph.add_stage(Stage("z", tuple(terms), tuple(shape[:2])), shape[2])
    term = graph.term(z, "last", random_values(rng, (*shape[:2], shape[2], 5), 0.2))
    graph.output = graph.add_stage(Stage("last", (term,)), 5, wide=True)
    return graph


@pytest.mark.parametrize("number", [0, 1, 2, *slow(*range(3, 12))])
def test_programs(rng, number):
    """Copies of results and of inputs in any order have the bits of the golden models."""
    for _ in range(4):
        config = Config(n=int(rng.choice([2, 4, 8, 16])), table_lanes=2, unified_buffer_depth=int(rng.choice([256, 4096])))
        check(_graph(rng), config, int(rng.integers(1, 4)), rng)


def test_weight_tile_at_the_end_of_a_region(rng):
    """The last weight tile of a transposed input reaches beyond the input, whose region has room for it."""
    graph = Graph("copies")
    x = graph.add_input("input", (1, 10, 16))
    graph.input_shape = (160,)
    copies = strided_copies(np.arange(160).reshape(10, 16).T.reshape(-1))
    copy = Term(x, graph.constant("one", np.ones((1, 1, 1), bfloat16)), copies=copies, fixed=True)
    y = graph.add_stage(Stage("y", (copy,), (1, 16)), 10)
    term = graph.term(y, "last", random_values(rng, (1, 16, 10, 3), 0.2))
    graph.output = graph.add_stage(Stage("last", (term,)), 3, wide=True)
    check(graph, Config(n=8), 1, rng)


def test_a_column_read_as_a_line(rng):
    """A dense layer reads the copy of a column of positions to a line. Without the copy, it reads the column."""
    graph = Graph("copies")
    x = graph.add_input("input", (3, 1, 4))
    graph.input_shape = (12,)
    y = graph.add_stage(Stage("y", (graph.term(x, "first", random_values(rng, (1, 1, 4, 1))),), (3, 1)), 1)
    one = graph.constant("one", np.ones((1, 1, 1), bfloat16))
    z = graph.add_stage(Stage("z", (Term(y, one, copies=strided_copies(np.arange(3)), fixed=True),), (1, 3)), 1)
    graph.output = graph.add_stage(Stage("last", (graph.term(z, "last", random_values(rng, (1, 3, 1, 5))),)), 5, wide=True)
    check(graph, Config(n=2), 2, rng)


def _trained(rng, index, shape, copied):
    """Returns a network that moves the results of a layer, by strides, or by weights of 1 at one position."""
    network = Builder(rng)
    x = network.conv("a", network.add_input("x", (1, 1, 7)), len(index))
    if copied:
        copy = Term(x, network.constant("one", np.ones((1, 1, 1), bfloat16)), copies=strided_copies(index), fixed=True)
        x = network.stage("moved", shape[1], copy, size=(1, shape[0]))
        last = Term(x, network.weights("last.weights", shape[0], shape[1], 3), (1, shape[0]))
    else:
        x = network.stage(
            "moved", len(index), network.term(x, "choice", np.eye(len(index))[:, index][None, None].astype(bfloat16))
        )
        last = Term(x, network.weights("last.weights", 1, len(index), 3))
    network.output = network.stage("last", 3, last, wide=True)
    return network


def test_training(rng):
    """The gradient of copies is the copy back to the source, with the sum of the copies of a value: gradients have the bits of
    weights of 1 in its place. The program of a step has the bits of the golden model."""
    shape = tuple(map(int, rng.integers(1, (5, 9))))
    size, seed, found = int(np.prod(shape)), int(rng.integers(1 << 30)), []
    index = rng.permutation(size) if rng.integers(2) else rng.integers(size, size=size)
    for copied in (True, False):
        step = make_step(_trained(np.random.default_rng(seed), index, shape, copied), Sgd())
        values = np.random.default_rng(seed)
        given, factors = inputs_of(step, 3, values) | kept_of(step, values), Sgd().factors(0.1, 3, 1)
        given |= {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in step.factors.items()}
        made, (own,) = run_step(step, given)
        found.append((made | own)[step.gradients["a.weights"]])
        if copied:
            run_on_model(compile_graph(step, Config(n=4, training=True), 3), Sgd(), rng)
    assert np.array_equal(*found)


def test_values_with_many_copies_are_not_trained(rng):
    for count in (64, 65):
        network = _trained(rng, np.repeat([0, 1], (count, 65 - count)), (5, 13), True)
        with pytest.raises(ModelError, match="more than 64 places, which can't be trained") if count == 65 else nullcontext():
            check_derivatives(network)

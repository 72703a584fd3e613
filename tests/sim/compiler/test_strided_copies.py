"""Tests of copies by strides: their description, and their programs, bit for bit against two golden models."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.functions.functions import NONE, RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.stage import Stage, Term
from amaranth_tpu.sim.ir.strided_copies import places_of, strided_copies
from graphs import check, random_values
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


@pytest.mark.parametrize("number", [0, 1, 2, *slow(*range(3, 60))])
def test_programs(rng, number):
    """Copies of results and of inputs in any order have the bits of the golden models."""
    for _ in range(4):
        config = Config(n=int(rng.choice([2, 4, 8, 16])), table_lanes=2, unified_buffer_depth=int(rng.choice([256, 4096])))
        check(_graph(rng), config, int(rng.integers(1, 4)), rng)

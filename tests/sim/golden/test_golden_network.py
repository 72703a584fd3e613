"""Tests of the golden model of stages against loops over every index."""

import itertools

import numpy as np
import pytest

from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16, multiply_accumulate, round_bfloat16
from amaranth_tpu.sim.golden.network import run_graph
from amaranth_tpu.sim.golden.windows import Convolution, patches, pool_max
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from second_network import run_stage, run_stages
from stage_graphs import GivenStage, GivenTerm, linked


def _random(random, shape):
    return round_bfloat16(random.normal(size=shape).astype(np.float32))


def _one(graph, stage, tensors, b, y, x, o):
    """Returns one sum of a stage, for sample `b`, position (y, x) and channel `o`, by one multiply-accumulate after another."""
    acc = graph.constants[stage.start][0, 0, o].view(np.uint32) if stage.start else np.uint32(0)
    for term in stage.terms:
        source = tensors[term.source]
        weights = graph.kernel(term)
        inputs, outputs = weights.shape[2], graph.channels(stage) // term.groups
        first = o // outputs * inputs
        for ky, kx, c in itertools.product(*map(range, weights.shape[:3])):
            sy = y * term.stride[0] + ky * term.dilation[0] - term.padding[0]
            sx = x * term.stride[1] + kx * term.dilation[1] - term.padding[1]
            inside = 0 <= sy < source.shape[1] and 0 <= sx < source.shape[2]
            value = source[b, sy, sx, first + c].view(np.uint16) if inside else np.uint16(0)
            acc = multiply_accumulate(acc, value, weights[ky, kx, c, o].view(np.uint16))
    return acc


@pytest.mark.parametrize(
    "channels,kernel,stride,dilation,padding,groups",
    [
        (4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
        (4, (2, 3), (2, 1), (1, 2), (0, 2), 2),
        (4, (1, 1), (2, 2), (1, 1), (0, 0), 4),
        (4, (3, 2), (1, 2), (2, 1), (3, 0), 1),
        (1, (2, 3), (1, 1), (2, 1), (1, 1), 1),
    ],
)
def test_convolution(channels, kernel, stride, dilation, padding, groups, rng):
    tensors = {"a": _random(rng, (2, 6, 7, channels)), "b": _random(rng, (2, 3, 4, 3))}
    terms = (
        GivenTerm("a", _random(rng, (*kernel, channels // groups, 8)), stride, dilation, padding, groups),
        GivenTerm("b", _random(rng, (1, 1, 3, 8))),
    )
    given = GivenStage("s", "o", terms, (3, 4), bias=rng.normal(size=8).astype(np.float32))
    graph = linked("g", Tensor("a", channels, 6, 7), [given], [Tensor("b", 3, 3, 4)])
    (stage,) = graph.stages
    got = run_stage(graph, stage, tensors, binary32=True)
    assert got.shape == (2, 3, 4, 8)
    for index in np.ndindex(got.shape):
        assert got[index].view(np.uint32) == _one(graph, stage, tensors, *index)


@pytest.mark.parametrize(
    "window,stride,dilation,padding",
    [((2, 2), (2, 2), (1, 1), (0, 0)), ((3, 2), (1, 2), (2, 1), (2, 1)), ((3, 3), (2, 2), (1, 1), (1, 1))],
)
def test_pool(window, stride, dilation, padding, rng):
    sums = rng.normal(size=(2, 7, 6, 3)).astype(np.float32)
    sums[0, 2, 3] = [np.nan, np.inf, -0.0]
    pool = Pool(window, (3, 3), stride, dilation, padding)
    got = pool_max(sums, pool)
    for b, y, x, c in np.ndindex(got.shape):
        inside = [
            sums[b, sy, sx, c]
            for sy in (y * stride[0] - padding[0] + w * dilation[0] for w in range(window[0]))
            if 0 <= sy < 7
            for sx in (x * stride[1] - padding[1] + w * dilation[1] for w in range(window[1]))
            if 0 <= sx < 6
        ]
        assert np.array_equal(got[b, y, x, c], np.max(inside), equal_nan=True)


def test_largest_of_zeros_is_positive():
    sums = np.array([-0.0, 0.0, -0.0, -0.0], np.float32).reshape(1, 2, 2, 1)
    assert not np.signbit(pool_max(sums, Pool((2, 2), (1, 1)))).any()
    assert np.signbit(pool_max(sums[:, 1:], Pool((1, 2), (1, 1)))).all()


def test_graph_joins_parts_and_orders(rng):
    """Two stages may write halves of one tensor, and samples and results may be permuted."""
    weights = [_random(rng, (1, 1, 2, 3)) for _ in range(2)]
    one = np.eye(3, dtype=np.float32).astype(bfloat16).reshape(1, 1, 3, 3)
    graph = linked(
        "g",
        Tensor("x", 2, 1, 2),
        (
            GivenStage("left", "y", (GivenTerm("x", weights[0]),), (1, 1), function=RELU),
            GivenStage("right", "y", (GivenTerm("x", weights[1], padding=(0, -1)),), (1, 1), origin=(0, 1)),
            GivenStage("all", "z", (GivenTerm("y", one),), (1, 2)),
        ),
        input_order=np.array([0, 2, 1, 3]),
        output_order=np.arange(6)[::-1],
    )
    samples = _random(rng, (5, 4))
    got, kept = run_graph(graph, samples, keep=True)
    channels = samples[:, [0, 2, 1, 3]].astype(np.float32).reshape(5, 2, 2)
    left = np.maximum(channels[:, 0] @ weights[0][0, 0].astype(np.float32), 0)
    right = channels[:, 1] @ weights[1][0, 0].astype(np.float32)
    assert np.allclose(got[:, ::-1], np.concatenate([left, right], axis=1), rtol=2e-2, atol=1e-2)
    assert kept["y"].shape == (5, 1, 2, 3) and kept["y"].dtype == bfloat16
    assert np.array_equal(got, run_graph(graph, samples))


def test_a_tensor_read_between_its_parts(rng):
    """Equal sums of a tensor are computed again after another part of the tensor is written."""
    weights = [_random(rng, (1, 1, 3, 3)) for _ in range(2)]
    both = GivenTerm("x", np.zeros((1, 1, 3, 2), bfloat16), data="y")
    stages = [GivenStage(name, "y", (GivenTerm("x", w),), origin=(0, at)) for at, (name, w) in enumerate(zip("lr", weights))]
    stages = stages[0], GivenStage("before", "before", (both,)), stages[1], GivenStage("z", "z", (both,))
    graph, x = linked("g", Tensor("x", 3), stages), _random(rng, (2, 3))
    (_, kept), wanted = run_graph(graph, x, keep=True), run_stages(graph, x)
    assert all(np.array_equal(values, wanted[name]) for name, values in kept.items())
    assert not np.array_equal(kept["before"], kept["z"].astype(bfloat16))


@pytest.mark.parametrize("padding", [(-5, 3), (-5, 0), (0, 3), (4, -3)])
def test_a_window_that_sees_padding_alone(padding):
    """A window that covers only padding, after a Slice and a Pad, contains only zeros."""
    values = np.ones((1, 4, 2, 1), np.float32).astype(bfloat16)
    term = Convolution(np.ones((2, 2, 1, 1), np.float32).astype(bfloat16), padding=padding)
    assert not patches(values, term, (1, 1)).astype(np.float32).any()

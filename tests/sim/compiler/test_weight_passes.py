"""Tests of the passes of stages: structural zeros, and equal tiles."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler.passes.neighbours import Weighted, count_passes
from amaranth_tpu.sim.ir.stage import Tensor, Term
from graphs import check, random_values
from stage_graphs import GivenStage, GivenTerm, linked

CONFIG = Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=64, **PLAIN)


def choice(chosen, channels):
    """Returns the weights (1, 1, channels, results) that select channel `chosen[i]` for result i, or none if it is negative."""
    weights = np.full((1, 1, channels, len(chosen)), -0.0, bfloat16)
    for result, channel in enumerate(chosen):
        if channel >= 0:
            weights[..., channel, result] = 1
    return weights


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chosen", [(0, 1, -1, -1, 3, 2), (-1,) * 6, (-1, -1, 0, -1, -1, -1)], ids=str)
def test_columns_without_weights_are_zeros(rng, chosen, with_bias):
    """Results that select no channel are the bias, or zeros, also if a whole tile or the whole stage selects none. The sums of a
    tile without any pass would be those of an earlier stage."""
    bias = rng.normal(size=6).astype(np.float32) if with_bias else None
    first = GivenStage("first", "t", (GivenTerm("x", rng.normal(size=(1, 1, 4, 4)).astype(bfloat16)),), size=(2, 2))
    second = GivenStage("second", "y", (GivenTerm("t", choice(chosen, 4), sparse=True),), size=(2, 2), bias=bias)
    check(linked("sparse", Tensor("x", 4, 2, 2), (first, second)), CONFIG, 2, rng)


def test_only_tiles_with_weights_have_a_pass():
    term = Weighted(Term("x", "w", sparse=True), choice((0, 1, -1, -1, 3, 2), 4))
    both = Weighted(Term("x", "w", sparse=True), choice((0, 3, -1, -1, 3, 2), 4))
    assert [count_passes((one,), 2) for one in (term, both)] == [3, 4]  # one for a column tile that selects nothing


@pytest.mark.parametrize("place", [{}, {"padding": (-1, 0)}], ids=["all", "a row"])
@pytest.mark.parametrize("begun", [True, False])
def test_later_terms_have_no_pass_for_columns_without_weights(rng, place, begun):
    """A choice of channels for one of three column tiles is one pass more, if another term, which may have a pass for each column
    tile, is before it. A choice alone also begins the sums of the other column tiles."""
    dense = GivenTerm("t", rng.normal(size=(1, 1, 4, 6)).astype(bfloat16))
    chosen = GivenTerm("u", choice((0, 1, -1, -1, -1, -1), 4), sparse=True, **place)
    first = [GivenStage("first", "t", (GivenTerm("x", rng.normal(size=(1, 1, 4, 4)).astype(bfloat16)),), size=(1, 4))]
    first += [GivenStage("second", "u", (GivenTerm("x", rng.normal(size=(1, 1, 4, 4)).astype(bfloat16)),), size=(2, 4))]
    terms = (dense, chosen) if begun else (chosen,)
    graph = linked("later", Tensor("x", 4, 2, 4), (*first, GivenStage("last", "y", terms, size=(1, 4))))
    program = check(graph, CONFIG, 2, rng)
    passes = sum(op.passes * op.rows for op in program.ops if op.opcode is Opcode.MATMUL and op.stage == 2)
    assert passes == 8 * (6 + 1 if begun else 3)


def average(source, channels, kernel=(3, 2), share=0.25, **changes):
    return GivenTerm(source, np.full((*kernel, 1, channels), share, bfloat16), groups=channels, **{"fixed": True} | changes)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("channels", [8, 7, 2])
def test_averages_of_whole_tensors(rng, channels, batch):
    """An average in two terms, followed by a dense layer, has the golden bits. It loads one tile for each term."""
    terms = (average("t", channels), average("t", channels, share=0.001))
    stages = (
        GivenStage("first", "t", (GivenTerm("x", random_values(rng, (1, 1, channels, channels))),), size=(3, 2)),
        GivenStage("pool", "p", terms),
        GivenStage("last", "y", (GivenTerm("p", random_values(rng, (1, 1, channels, 3))),)),
    )
    program = check(linked("average", Tensor("x", channels, 3, 2), stages), CONFIG, batch, rng)
    tiles = [op.passes for op in program.ops if op.opcode is Opcode.MATMUL and op.stage == 1 and not op.keep]
    assert batch > 1 or sum(tiles) == 2

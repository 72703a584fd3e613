"""Tests that packing neighbouring positions into one vector gives the same bits with fewer array passes."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.passes.neighbours import Weighted, best_folding, count_passes, fold_columns
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.ir.stage import Tensor
from graphs import check, random_graph, random_values
from second_network import run_stage
from stage_graphs import GivenStage, GivenTerm, linked

_N = 16


def _unfolded(values, fold, tensor):
    batch, height, width, _ = values.shape
    columns = values.reshape(batch, height, width * fold.count, tensor.channels)
    return columns[:, :, fold.offset : fold.offset + tensor.width]


def _same_bits(one, other):
    return np.array_equal(one.view(np.uint8), other.view(np.uint8))


def test_folded_stages_compute_the_same_bits(rng):
    """Each folded stage matches the golden model of the original graph, and the padding around a tensor has no effect."""
    folded_tensors = 0
    while folded_tensors < 8:
        graph = random_graph(rng, stages=4, channels=7, size=14, split=False)
        found = best_folding(graph, _N)
        packed_graph, folds = found.packed, found.folds
        folded_tensors += len(folds)
        values = {"x": rng.normal(size=(2, *graph.tensors["x"].shape)).astype(bfloat16)}
        packed = dict(values)
        for stage, made in zip(graph.stages, packed_graph.stages, strict=True):
            values[stage.output] = run_stage(graph, stage, values)
            packed[stage.output] = whole = run_stage(packed_graph, made, packed)
            if stage.output in folds:
                whole = _unfolded(whole, folds[stage.output], graph.tensors[stage.output])
            assert _same_bits(np.ascontiguousarray(whole), values[stage.output]), (stage, folds)


def _depthwise(rng, channels, width, padding):
    """Returns a graph of a convolution, a depthwise convolution, a 1 x 1 convolution and a dense layer."""
    tensors = [Tensor("x", 3, 6, width), Tensor("a", channels, 6, width)]
    tensors += [Tensor(name, count, 6, width + 2 * padding - 2) for name, count in (("b", channels), ("y", 16))]
    terms = [
        GivenTerm("x", random_values(rng, (3, 3, 3, channels)), padding=(1, 1)),
        GivenTerm("a", random_values(rng, (3, 3, 1, channels)), padding=(1, padding), groups=channels),
        GivenTerm("b", random_values(rng, (1, 1, channels, 16))),
    ]
    stages = [GivenStage(one.name, one.name, (term,), one.shape[:2], function=RELU) for one, term in zip(tensors[1:], terms)]
    stages.append(GivenStage("z", "z", (GivenTerm("y", random_values(rng, (6, tensors[-1].width, 16, 4))),)))
    return linked("g", tensors[0], stages)


def _passes(graph, number):
    return count_passes(tuple(Weighted(term, graph.kernel(term)) for term in graph.stages[number].terms), _N)


def test_passes_of_a_depthwise_convolution(rng):
    """Folding two columns of an 8-channel depthwise convolution into 16 lanes needs 6 passes instead of 18. The result starts a
    column early."""
    graph = _depthwise(rng, 8, 12, 1)
    packed, folds = fold_columns(graph, Config(n=_N), 1), best_folding(graph, _N).folds
    stages = packed.stages
    assert [(fold.count, fold.offset) for fold in folds.values()] == [(2, 0), (2, 1), (2, 0)]
    assert [stage.size for stage in stages] == [(6, 6), (6, 7), (6, 6), (1, 1)]
    assert _passes(graph, 1) == 9 and _passes(packed, 1) == 6
    assert _passes(packed, 2) == 2, "one for each column of the pair"
    assert fold_columns(graph, Config(n=8), 1) is graph, "no lane is idle"
    folds = best_folding(_depthwise(rng, 8, 13, 1), _N).folds
    assert "a" not in folds and "b" in folds, "behind the last column of a there must be zeros"


@pytest.mark.search
def test_folded_networks_on_the_core(rng):
    """Networks with folded columns match the golden model bit for bit on the instruction-level model, with odd widths and tiles
    without weights."""
    for graph, config in ((_depthwise(rng, 4, 9, 0), Config(n=8)), (_depthwise(rng, 8, 8, 1), Config(n=16))):
        program = check(graph, config, 2, rng, samples=2)
        made = program.memory.lowered.given.tensors
        assert any(made[name].channels > one.channels for name, one in graph.tensors.items())
        assert program.useful_macs == 2 * sum(graph.macs)

"""Tests of the compiler's passes by a small graph for each pass, and of the text form of programs."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler import compile_graph as compile_module
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.passes.pipeline import LOWERING, MAPPING, PASSES, PROGRAM, run_passes, up_to
from amaranth_tpu.sim.compiler.program_text import program_text
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from stage_graphs import GivenStage, GivenTerm, linked

CORE = Config(n=4, accumulator_depth=16, unified_buffer_depth=256, transpose=True, attention=False)


def _weights(*shape):
    return (np.arange(np.prod(shape)) % 5 - 2).reshape(shape).astype(bfloat16)


def _graph(sizes, stages):
    return linked("g", Tensor("x", *sizes), stages)


def _biased():
    bias = np.array([[[1, 2], [1, 2], [3, 4]]], np.float32)
    return _graph((2, 1, 3), [GivenStage("a", "y", (GivenTerm("x", _weights(1, 1, 2, 2)),), (1, 3), bias, title="Add")])


def _pooled():
    pool = Pool((5, 5), (2, 1), (2, 2))
    stage = GivenStage("a", "p", (GivenTerm("x", _weights(1, 1, 3, 3)),), (8, 5), pool=pool, function=RELU)
    return _graph((3, 8, 5), [stage, GivenStage("b", "y", (GivenTerm("p", _weights(2, 1, 3, 2)),))])


def _scaled():
    stages = [
        GivenStage("s", "s", (GivenTerm("x", _weights(1, 1, 3, 1)),), bias=np.ones(1, np.float32)),
        GivenStage("a", "a", (GivenTerm("x", _weights(1, 1, 3, 6)),), times="s"),
        GivenStage("y", "y", (GivenTerm("a", _weights(1, 1, 6, 2)),)),
    ]
    return _graph((3,), stages)


def _narrow():
    stages = [
        GivenStage("a", "a", (GivenTerm("x", _weights(1, 1, 4, 2)),), (1, 8), function=RELU),
        GivenStage("b", "y", (GivenTerm("a", _weights(1, 2, 2, 3)),), (1, 4)),
    ]
    stages[1] = replace(stages[1], terms=(replace(stages[1].terms[0], stride=(1, 2)),))
    return _graph((4, 1, 8), stages)


def _depthwise():
    stages = [
        GivenStage("a", "a", (GivenTerm("x", _weights(1, 1, 4, 8)),), (5, 4)),
        GivenStage("d", "d", (GivenTerm("a", _weights(3, 3, 1, 8), padding=(1, 1), groups=8),), (5, 4)),
        GivenStage("p", "p", (GivenTerm("d", _weights(1, 1, 8, 2)),), (5, 4)),
        GivenStage("y", "y", (GivenTerm("p", _weights(5, 4, 2, 3)),)),
    ]
    return _graph((4, 5, 4), stages)


def _unread():
    stages = [
        GivenStage("a", "a", (GivenTerm("x", _weights(1, 1, 2, 3)),), (5, 5), pool=Pool((2, 2), (2, 2), (2, 2))),
        GivenStage("b", "y", (GivenTerm("a", _weights(1, 1, 3, 2)),)),
    ]
    return _graph((2, 5, 5), stages)


def _wide():
    pool = Pool((1, 3), (2, 20), (1, 2))
    return _graph((2, 2, 41), [GivenStage("a", "y", (GivenTerm("x", _weights(1, 1, 2, 3)),), (2, 41), pool=pool)])


def _large():
    stages = [
        GivenStage("s", "s", (GivenTerm("x", _weights(19, 9, 1, 8), dilation=(1, 2), padding=(0, 1), groups=8),)),
        GivenStage("b", "y", (GivenTerm("s", _weights(1, 1, 8, 3)),)),
    ]
    return _graph((8, 18, 16), stages)


def _stages(graph):
    return {stage.name: stage for stage in graph.stages}


def _only_what_is_read(graph):
    return graph.tensors["a"].shape == (1, 1, 3) and graph.stages[0].size == (2, 2)


def _parts_of_lines(graph):
    parts = {(*stage.origin, *stage.result_size) for stage in graph.stages}
    fit = all(stage.size[0] * stage.size[1] <= CORE.accumulator_depth for stage in graph.stages)
    return fit and sum(height * width for *_, height, width in parts) == 2 * 20 and len(parts) == len(graph.stages) > 2


def _lines_of_a_kernel(graph):
    terms = graph.stages[0].terms
    return len(terms) > 2 and sum(term.kernel[0] for term in terms) == 19 and {term.padding[1] for term in terms} == {1}


def _by_position(graph):
    first, second = graph.stages
    return not any(map(graph.has_bias_rows, graph.stages)) and (first.size, second.size, second.origin) == (
        (1, 2),
        (1, 1),
        (0, 2),
    )


def _rows_then_columns(graph):
    first, second, _ = graph.stages
    return (first.pool.window, first.pool.size, second.pool.window, second.pool.size) == ((1, 5), (7, 1), (5, 1), (2, 1))


def _factor_in_all_lanes(graph):
    (weights,) = {tuple(map(tuple, graph.kernel(term)[0, 0].T.tolist())) for term in _stages(graph)["s"].terms}
    return graph.tensors["s"].channels == CORE.n and len(set(weights)) == 1


def _pairs_of_columns(graph):
    packed, (term,) = graph.tensors["a"], graph.stages[1].terms
    return packed.shape == (1, 4, 4) and (term.kernel, term.stride) == ((1, 1), (1, 1))


def _positions_as_channels(graph):
    transposed = [term.source for stage in graph.stages for term in stage.terms if term.lanes]
    return graph.tensors["d"].shape == (5, 1, 32) and transposed == ["a", "d"]


#: For each pass: a graph, and a condition on the graph after the pass. For an optional pass, it is about the variant with it.
CASES = {
    "crop": (_unread, _only_what_is_read),
    "split-large": (_wide, _parts_of_lines),
    "split-kernels": (_large, _lines_of_a_kernel),
    "split-bias-rows": (_biased, _by_position),
    "split-pooling": (_pooled, _rows_then_columns),
    "widen-factors": (_scaled, _factor_in_all_lanes),
    "pack-columns": (_narrow, _pairs_of_columns),
    "positions-in-lanes": (_depthwise, _positions_as_channels),
}


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.name)
def test_graph_after_pass(one):
    make, holds = CASES[one.name]
    graph = make()
    *before, made = run_passes([one], graph, CORE, 8)
    assert holds(made), str(made)
    assert before == ([graph] if one in MAPPING else []), "the graph without an optional pass is a variant, too"


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.name)
def test_pass_without_effect_returns_the_same_graph(one):
    graph = _graph((8,), [GivenStage("a", "y", (GivenTerm("x", _weights(1, 1, 8, 4)),))])
    core = replace(CORE, attention=True)
    assert run_passes([one], graph, core, 2) == [graph]


@pytest.mark.parametrize("name", CASES)
def test_pass_changes_no_bit(monkeypatch, name, rng):
    """A program of the variant with all passes that change the graph has the bits of the graph before them."""
    graph = CASES[name][0]()
    assert run_passes([one for one in PASSES if one.name == name], graph, CORE, 5)[-1] is not graph
    monkeypatch.setattr(compile_module, "run_passes", lambda *arguments: run_passes(*arguments)[-1:])
    samples = rng.normal(size=(5, graph.input_size)).astype(bfloat16)
    assert run_samples(graph, CORE, samples, simulator="model").mismatched_bits == 0


@pytest.mark.search
def test_progress_counts_the_variants():
    counts = []
    compile_network(_depthwise(), CORE, 8, progress=lambda *now: counts.append(now))
    assert counts == [(1, 3), (2, 3), (3, 3)]


def test_unknown_pass_is_refused_with_the_nearest_name():
    with pytest.raises(CompileError, match=r"^pass 'crob': does not exist; did you mean 'crop'\?[^\n]*--passes[^\n]*$"):
        up_to("crob")
    assert up_to("split-pooling") == LOWERING[:3] and up_to(PROGRAM) == PASSES


def test_text_of_a_program_has_a_line_for_each_instruction():
    graph = _pooled()
    program, again, other = (compile_network(graph, CORE, batch) for batch in (3, 3, 4))
    assert program_text(program) == program_text(again) != program_text(other)
    lines = program_text(program).splitlines()
    assert lines[0] == f"program g: batch 3, {program.predicted_cycles} cycles"
    assert "tensor y: OUTPUT+0, samples, 1 x 3 vectors" in lines
    instructions = [line.split()[1] for line in lines if line[0].isdigit()]
    assert instructions == [op.opcode.name for op in program.ops]

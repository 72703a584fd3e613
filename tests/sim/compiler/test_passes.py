"""Tests of the compiler's passes by the text of a small graph after each pass, and of the text forms of graphs and programs."""

from dataclasses import fields, replace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.passes.pipeline import LOWERING, PASSES, PROGRAM, run_passes, up_to
from amaranth_tpu.sim.compiler.program import CompileError
from amaranth_tpu.sim.compiler.program_text import program_text
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import Feed, Graph, Pool, Stage, Tensor, Term, View
from amaranth_tpu.sim.ir.graph_text import graph_text

CORE = Config(n=4, accumulator_depth=16, unified_buffer_depth=256, transpose=True, attention=False)


def _weights(*shape):
    return (np.arange(np.prod(shape)) % 5 - 2).reshape(shape).astype(bfloat16)


def _graph(tensors, stages):
    tensors = {name: Tensor(name, *sizes) for name, sizes in tensors.items()}
    return Graph("g", tensors, next(iter(tensors)), stages[-1].output, tuple(stages))


def _biased():
    bias = np.array([[[1, 2], [1, 2], [3, 4]]], np.float32)
    return _graph(
        {"x": (2, 1, 3), "y": (2, 1, 3)}, [Stage("a", "y", (Term("x", _weights(1, 1, 2, 2)),), (1, 3), bias, title="Add")]
    )


def _pooled():
    pool = Pool((5, 5), (2, 1), (2, 2))
    stage = Stage("a", "p", (Term("x", _weights(1, 1, 3, 3)),), (8, 5), pool=pool, function=RELU)
    return _graph({"x": (3, 8, 5), "p": (3, 2, 1), "y": (2,)}, [stage, Stage("b", "y", (Term("p", _weights(2, 1, 3, 2)),))])


def _scaled():
    stages = [
        Stage("s", "s", (Term("x", _weights(1, 1, 3, 1)),), bias=np.ones(1, np.float32)),
        Stage("a", "a", (Term("x", _weights(1, 1, 3, 6)),), times="s"),
        Stage("y", "y", (Term("a", _weights(1, 1, 6, 2)),)),
    ]
    return _graph({"x": (3,), "s": (1,), "a": (6,), "y": (2,)}, stages)


def _narrow():
    stages = [
        Stage("a", "a", (Term("x", _weights(1, 1, 4, 2)),), (1, 8), function=RELU),
        Stage("b", "y", (Term("a", _weights(1, 2, 2, 3)),), (1, 4)),
    ]
    stages[1] = replace(stages[1], terms=(replace(stages[1].terms[0], stride=(1, 2)),))
    return _graph({"x": (4, 1, 8), "a": (2, 1, 8), "y": (3, 1, 4)}, stages)


def _depthwise():
    stages = [
        Stage("a", "a", (Term("x", _weights(1, 1, 4, 8)),), (5, 4)),
        Stage("d", "d", (Term("a", _weights(3, 3, 1, 8), padding=(1, 1), groups=8),), (5, 4)),
        Stage("p", "p", (Term("d", _weights(1, 1, 8, 2)),), (5, 4)),
        Stage("y", "y", (Term("p", _weights(5, 4, 2, 3)),)),
    ]
    return _graph({"x": (4, 5, 4), "a": (8, 5, 4), "d": (8, 5, 4), "p": (2, 5, 4), "y": (3,)}, stages)


def _image():
    return _graph({"x": (1, 4, 4), "y": (2, 4, 4)}, [Stage("c", "y", (Term("x", _weights(3, 3, 1, 2), padding=(1, 1)),), (4, 4))])


#: For each pass: a graph, and its text after the pass; for an optional pass, of the variant with it.
GOLDEN = {
    "split-bias-rows": (
        _biased,
        """
graph g: x -> y
tensor x: 1x3x2
tensor y: 1x3x2
stage a: y 1x2 = bias 2#2e3fa576 + x * 1x1x2x2#a8fd7e89
stage a_2: y 1x1 = bias 2#7fd65497 + x * 1x1x2x2#a8fd7e89 (padding 0x-2) | origin 0x2
""",
    ),
    "split-pooling": (
        _pooled,
        """
graph g: x -> y
tensor x: 8x5x3
tensor p: 2x1x3
tensor y: 1x1x2
tensor a, largest along x, 3: 7x1x3
stage a, along x: a, largest along x, 3 7x5 = x * 1x1x3x3#c29c6c8f | pool 1x5 to 7x1 stride 1x2
stage a: p 7x1 = a, largest along x, 3 * 1x1x1x3#c3883bcc (groups 3) | pool 5x1 to 2x1 stride 2x1 | relu
stage b: y 1x1 = p * 2x1x3x2#ce5a798f
""",
    ),
    "widen-factors": (
        _scaled,
        """
graph g: x -> y
tensor x: 1x1x3
tensor s: 1x1x4
tensor a: 1x1x6
tensor y: 1x1x2
stage s: s 1x1 = bias 4#e8681456 + x * 1x1x3x4#0f37c542
stage a: a 1x1 = x * 1x1x3x6#ab120065 | times s
stage y: y 1x1 = a * 1x1x6x2#ce5a798f
""",
    ),
    "pack-columns": (
        _narrow,
        """
graph g: x -> y
tensor x: 1x8x4
tensor a: 1x4x4
tensor y: 1x4x3
stage a: a 1x4 = x * 1x2x4x4#9f79f919 (stride 1x2, sparse) | relu
stage b: y 1x4 = a * 1x1x4x3#ce5a798f (sparse)
""",
    ),
    "positions-in-lanes": (
        _depthwise,
        """
graph g: x -> y
tensor x: 5x4x4
tensor a: 5x4x8
tensor d: 5x1x32
tensor p: 5x4x2
tensor y: 1x1x3
tensor a, transposed: 5x1x32 transpose of a
tensor d, transposed: 5x4x8 transpose of d
stage a: a 5x4 = x * 1x1x4x8#99aa1bd9
stage d: d 5x1 = a, transposed * 3x1x4x32#0514241b (padding 1x0, groups 8)
stage p: p 5x4 = d, transposed * 1x1x8x2#bbc6d433
stage y: y 1x1 = p * 5x4x2x3#66d867c8
""",
    ),
    "im2col": (
        _image,
        """
graph g: x -> y
tensor x, gathered 0: 4x4x9
tensor x: 4x4x1
tensor y: 4x4x2
gather x, gathered 0: windows 3x3 of x padding 1x1
stage c: y 4x4 = x, gathered 0 * 1x1x9x2#ab120065
""",
    ),
}


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.name)
def test_text_after_pass(one):
    make, text = GOLDEN[one.name]
    graph = make()
    *before, made = run_passes([one], graph, CORE, 8)
    assert graph_text(made) == text.strip()
    assert before == ([graph] if one.optional else []), "the graph without an optional pass is a variant, too"


@pytest.mark.parametrize("one", PASSES, ids=lambda one: one.name)
def test_pass_returns_the_same_graph_if_it_changes_nothing(one):
    graph = _graph({"x": (8,), "y": (4,)}, [Stage("a", "y", (Term("x", _weights(1, 1, 8, 4)),))])
    if one.name != "im2col":  # which lists the inputs
        assert run_passes([one], graph, replace(CORE, attention=True), 2) == [graph]


@pytest.mark.parametrize("name", ["split-bias-rows", "split-pooling", "widen-factors", "pack-columns"])
def test_pass_changes_no_bit(name, rng):
    """Only graphs without gathered or transposed tensors run on the golden model. Tests of compiled programs cover the others."""
    graph = GOLDEN[name][0]()
    made = run_passes([one for one in PASSES if one.name == name], graph, replace(CORE, n=8), 8)[-1]
    assert made is not graph
    samples = rng.normal(size=(5, graph.input_size)).astype(bfloat16)
    assert np.array_equal(run_network(made, samples).view(np.uint32), run_network(graph, samples).view(np.uint32))


def test_unknown_pass_is_refused_with_the_nearest_name():
    with pytest.raises(CompileError, match=r"^pass 'im2kol': does not exist; did you mean 'im2col'\?[^\n]*--passes[^\n]*$"):
        up_to("im2kol")
    assert up_to("split-pooling") == LOWERING[:2] and up_to(PROGRAM) == PASSES


def _changed(record, values):
    """Yields copies of a record, each with one field changed."""
    for name, value in values.items():
        yield replace(record, **{name: value})


def test_text_differs_if_a_graph_differs():
    """Each field of a stage, term, pool or tensor that affects results changes the text."""
    stage = Stage("a", "y", (Term("x", _weights(2, 2, 3, 3)),), (3, 3), pool=Pool((2, 2), (2, 2)))
    order = np.arange(9)
    terms = {"source": "z", "weights": _weights(2, 2, 3, 3) * -1, "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)}
    terms |= {"groups": 3, "fixed": True, "data": "z", "rows": True, "sparse": True}
    pools = {"window": (2, 3), "size": (1, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)}
    stages = {"name": "b", "output": "z", "size": (3, 2), "bias": np.ones(3, np.float32), "function": RELU, "softmax": True}
    stages |= {"times": "z", "origin": (1, 0), "reflow": True, "pool": None}
    tensors = {"channels": 2, "height": 4, "width": 4, "view": View("z")}
    views = {"of": "y", "rows": 2, "step": 3, "before": 1}
    graphs = {"name": "h", "input": "z", "output": "z", "input_order": order, "output_order": order, "feeds": (Feed("z", order),)}
    assert {*terms} | {*pools} == {one.name for kind in (Term, Pool) for one in fields(kind)}
    assert {*stages, "terms", "value", "title"} == {one.name for one in fields(Stage)}, "value and title are for messages only"
    assert {*tensors, "name"} == {one.name for one in fields(Tensor)} and {*views} == {one.name for one in fields(View)}

    graph = _graph({"x": (3, 3, 3), "y": (3, 2, 2)}, [stage])
    made = [replace(graph, stages=(one,)) for one in _changed(stage, stages)]
    made += [replace(graph, stages=(replace(stage, terms=(one,)),)) for one in _changed(stage.terms[0], terms)]
    made += [replace(graph, stages=(replace(stage, pool=one),)) for one in _changed(stage.pool, pools)]
    made += [replace(graph, tensors=graph.tensors | {"x": one}) for one in _changed(graph.tensors["x"], tensors)]
    viewed = _changed(View("z"), views)
    made += [replace(graph, tensors=graph.tensors | {"x": replace(graph.tensors["x"], view=one)}) for one in viewed]
    texts = {graph_text(one) for one in [graph, *made, *_changed(graph, graphs)]}
    assert len(texts) == 1 + len(made) + len(graphs)


def test_text_of_a_program_has_a_line_for_each_instruction():
    graph = _pooled()
    program, again, other = (compile_network(graph, CORE, batch) for batch in (3, 3, 4))
    assert program_text(program) == program_text(again) != program_text(other)
    lines = program_text(program).splitlines()
    assert lines[0] == f"program g: batch 3, {program.predicted_cycles} cycles"
    assert "tensor y: OUTPUT+0 [sample 1*3, y 1*3, tile 1*3, x 3*1]" in lines
    instructions = [line.split()[1] for line in lines if line[0].isdigit()]
    assert instructions == [op.opcode.name for op in program.ops]

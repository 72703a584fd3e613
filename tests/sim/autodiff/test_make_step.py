"""Tests of the graph of a training step: its text for small networks, and rules for gradients of operands."""

from dataclasses import fields, replace

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.network import step_network
from amaranth_tpu.sim.autodiff.operands import source_term
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.steps import run_step
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Norm, Pool, Select, Stage, Tensor, Term
from amaranth_tpu.sim.ir.strided_copies import StridedCopy
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked


def _graph(rng):
    """Returns the graph of a strided convolution with ReLU and pooling, two dense layers that read its result, and the sum of
    the two dense layers."""

    def term(source, *shape, **fields):
        return GivenTerm(source, random_values(rng, shape), **fields)

    bias, pool = np.zeros(3, np.float32), Pool((2, 2), (2, 2), (2, 2))
    stages = (
        GivenStage("conv", "a", (term("x", 3, 3, 2, 3, stride=(2, 2), padding=(1, 1)),), (4, 4), bias, pool, RELU),
        GivenStage("left", "b", (term("a", 2, 2, 3, 4),), function=Function("tanh")),
        GivenStage("right", "c", (term("a", 2, 2, 3, 4),)),
        GivenStage("last", "y", (term("b", 1, 1, 4, 5), term("c", 1, 1, 4, 5))),
    )
    return linked("g", Tensor("x", 2, 8, 8), stages)


def _step(rng, optimizer, masked=(), cores=1):
    training = with_parameters(_graph(rng))
    return make_step(step_network(training, masked), optimizer, cores)


SGD = """
s- a 2x2x3 = [conv.bias] + x * conv.weights (kernel 3x3, stride 2x2, padding 1x1) | pool 2x2 | relu
s- a, index 2x2x3 = [conv.bias] + x * conv.weights (kernel 3x3, stride 2x2, padding 1x1) | pool 2x2 | index | relu
s- b 1x1x4 = a * left.weights (kernel 2x2) | tanh | times mask 1
s- b, rounded sums 1x1x4 = a * left.weights (kernel 2x2)
s- c 1x1x4 = a * right.weights (kernel 2x2)
sw y 1x1x5 = b * last.weights0 + c * last.weights1
s- y, softmax 1x1x5 = b * last.weights0 + c * last.weights1 | softmax
s- gradient of y 1x1x5 = y, softmax * constant 1 (groups 5) + targets * constant -1 (groups 5)
s- gradient of c 1x1x4 = gradient of y * last.weights1^T
s- b, slope 1x1x4 = [b, rounded sums] | the derivative of tanh
s- gradient of b, 1 of 2 1x1x4 = gradient of y * last.weights0^T | times mask 1
s- gradient of b 1x1x4 = [gradient of b, 1 of 2] | times b, slope
s- gradient of a 4x4x3 = gradient of b * left.weights^T (kernel 2x2, padding 1x1) + \
gradient of c * right.weights^T (kernel 2x2, padding 1x1) | place a, index
-w gradient of conv.weights 9x2x3 = x^T * gradient of a (kernel 3x3, stride 2x2, padding 1x1)
-- conv.weights, momentum, next 9x2x3 = [gradient of conv.weights] + conv.weights, momentum * momentum (groups 3) + \
conv.weights * decay (groups 3)
-w conv.weights, next 9x2x3 = [conv.weights] + conv.weights, momentum, next * rate (groups 3)
-w gradient of conv.bias 1x1x3 = constant 1^T * gradient of a
-- conv.bias, momentum, next 1x1x3 = [gradient of conv.bias] + conv.bias, momentum * momentum (groups 3)
-w conv.bias, next 1x1x3 = [conv.bias] + conv.bias, momentum, next * rate (groups 3)
"""


def test_text_of_a_step(rng):
    """The text of a step lists forward stages with their twins, the loss, gradients in the order of the stages that read a
    tensor, and updates with weight decay."""
    text = str(_step(rng, Sgd(weight_decay=0.1), masked=(1,)))
    assert text.startswith(SGD.strip())


def test_text_differs_if_a_step_differs():
    """Each field of a term, a pool or a stage that affects results changes the text."""
    sizes, whole = {"stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)}, Pool((2, 2), (2, 2), (2, 2))
    term = Term("x", "w")
    terms = {"source": "z", "weights": "z", "kernel": (2, 1), "groups": 3, "apart": (2, 1), "swapped": True, "transposed": True}
    terms |= {"lanes": 4, "blocks": ((0, 1),), "copies": (StridedCopy(0, 0, ()),)} | sizes
    stages = {"output": "z", "start": "z", "index": True, "function": RELU, "softmax": True, "norm": Norm(1), "times": "z"}
    stages |= {"select": Select("z"), "ring": "all_gather", "origin": (1, 0), "size": (5, 5), "pool": whole}
    assert {*terms} == {one.name for one in fields(Term) if one.compare}
    assert {*stages, "terms", "name"} == {one.name for one in fields(Stage) if one.compare}
    stage = Stage("y", (term,), (4, 4))
    pooled = replace(stage, pool=whole)
    changed = [stage, replace(stage, terms=()), replace(pooled, pool=replace(whole, window=(2, 1)))]
    changed += [replace(stage, terms=(replace(term, **{name: value}),)) for name, value in terms.items()]
    changed += [replace(pooled, pool=replace(whole, **{name: value})) for name, value in sizes.items()]
    changed += [replace(stage, **{name: value}) for name, value in stages.items()]
    tensors = {name: Tensor(name, 3, 5, 5) for name in "xyz"}
    texts = {str(Graph(tensors=tensors, stages=[one])) for one in changed}
    assert len(texts) == len(changed)


ADAM_RING = """
-w gradient of left.weights 4x3x4 = a^T * gradient of b (kernel 2x2)
-w gradient of left.weights, sum of cores 4x3x2 = [gradient of left.weights] | reduce_scatter
-- left.weights, own, gradient 4x3x2 = [gradient of left.weights, sum of cores]
-- left.weights, own, square 4x3x2 = [gradient of left.weights, sum of cores] | times left.weights, own, gradient
-- left.weights, own, first, next 4x3x2 = [gradient of left.weights, sum of cores] + left.weights, own, first * first (groups 2)
-w left.weights, own, second, next 4x3x2 = [left.weights, own, second] + left.weights, own, second * moved (groups 2) + \
left.weights, own, square * square (groups 2)
-- left.weights, own, root 4x3x2 = [left.weights, own, second] + left.weights, own, second * moved (groups 2) + \
left.weights, own, square * square (groups 2) | Adam's inverse root
-- left.weights, own, root beyond 4x3x2 = left.weights, own, second, next * beyond (groups 2) | Adam's inverse root
-- left.weights, own, first * root 4x3x2 = [gradient of left.weights, sum of cores] + left.weights, own, first * first \
(groups 2) | times left.weights, own, root
-- left.weights, own, step 4x3x2 = [left.weights, own, first * root] | times left.weights, own, root beyond
-w left.weights, own, next 4x3x2 = [left.weights, own] + left.weights, own, step * rate (groups 2)
"""


def test_text_of_adam_on_a_ring(rng):
    """Each of 2 cores updates its share of 4 outputs; biases are updated by all cores."""
    text = str(_step(rng, Adam(), cores=2))
    assert ADAM_RING.strip() in text
    assert "-- left.weights 4x3x4 = [left.weights, own] | all_gather\n" in text[: text.index("gradient")]
    assert "gradient of conv.bias, sum of cores 1x1x3 = [gradient of conv.bias] | all_reduce" in text
    assert "left.weights, own, second <- left.weights, own, second, next\n" in text


def test_names_that_the_network_uses_are_not_taken(rng):
    """Tensors of an ONNX file may have names such as "rate" and "targets"."""
    names, graph = {"a": "rate", "b": "targets", "c": "constant 1", "x": "gradient of y", "y": "y"}, _graph(rng)
    for name, one in [*graph.tensors.items()]:
        if one.samples:
            del graph.tensors[name]
            graph.tensors[names[name]] = replace(one, name=names[name])
    for number, stage in enumerate(graph.stages):
        terms = tuple(replace(term, source=names[term.source]) for term in stage.terms)
        graph.stages[number] = replace(stage, output=names[stage.output], terms=terms)
    training = with_parameters(replace(graph, inputs=(names["x"],)))
    made = make_step(step_network(training), Sgd())
    assert (
        len({stage.output for stage in made.stages} | {*made.inputs, made.targets, *made.factors.values()})
        == len(made.stages) + 4
    )
    assert made.factors["rate"] == "rate'" and made.targets == "targets'" and made.sums_gradients["y"] == "gradient of y'"
    assert (made.constants["constant 1'"] == 1).all()


def test_graphs_changed_by_passes_are_refused(rng):
    """A step has no transposed sources and no factor in some lanes: without a message, it would compute other values."""
    graph = _graph(rng)
    conv, left, *others = graph.stages
    tensors = {**graph.tensors, "f": Tensor("f", 2)}
    for name, form, one in (
        ("left", "reads 'a' transposed", replace(left, terms=(replace(left.terms[0], lanes=4),))),
        ("left", "has 2 lanes in its factor", replace(left, times="f")),
    ):
        stages = conv, one, *others
        with pytest.raises(ModelError, match=f"^stage '{name}': it {form}, which a step cannot have; [^\n]*$"):
            step_network(replace(graph, tensors=tensors, stages=stages))


def test_a_network_is_not_changed_by_its_step(rng):
    training = with_parameters(_graph(rng))
    network = step_network(training)
    before = str(network), set(network.tensors), dict(network.factors)
    one, two = make_step(network, Sgd()), make_step(network, Sgd())
    assert (str(network), set(network.tensors), dict(network.factors)) == before and str(one) == str(two)


@pytest.mark.parametrize("groups", [1, 2])
def test_gradient_of_a_source_is_the_adjoint_map(rng, groups):
    """The gradient of a source is the adjoint map: <D, term(X)> = <source_term(D), X>. This holds exactly for small integers,
    for random strides, dilations and padding."""
    have = tuple(int(size) for size in rng.integers(3, 8, 2))
    stride, dilation, padding = (tuple(int(one) for one in rng.integers(low, low + 2, 2)) for low in (1, 1, 0))
    size = tuple((h + before - apart) // by + 1 for h, before, apart, by in zip(have, padding, dilation, stride))
    step = Graph()
    step.add_input("x", (*have, 4))
    step.add_input("d", (*size, 6))
    weights = step.add_constant("w", rng.integers(-2, 3, (4, 4 // groups, 6)).astype(bfloat16))
    term = Term("x", weights, (2, 2), stride, dilation, padding, groups)
    step.add_stage(Stage("there", (term,), size), 6)
    step.add_stage(Stage("back", (source_term(step, term, "d"),), have), 4)
    x, d = rng.integers(-2, 3, (2, *have, 4)), rng.integers(-2, 3, (2, *size, 6))
    values, _ = run_step(step, {"x": x.astype(bfloat16), "d": d.astype(bfloat16)})
    assert (values["there"].astype(int) * d).sum() == (values["back"].astype(int) * x).sum()


def test_terms_add_in_their_order():
    """Terms are added in their order: the sum of 2^30, 1 and -2^30 is 0, and it is 1 if 1 is added last."""
    for order, total in (((2.0**30, 1, -(2.0**30)), 0), ((2.0**30, -(2.0**30), 1), 1)):
        step = Graph()
        step.add_input("x", (1, 1, 2))
        terms = (Term("x", step.add_constant("w", np.full((1, 1, 1), factor, bfloat16)), groups=2) for factor in order)
        step.add_stage(Stage("y", tuple(terms)), 2, wide=True)
        values, _ = run_step(step, {"x": np.ones((1, 1, 1, 2), bfloat16)})
        assert values["y"].reshape(-1).tolist() == [total, total]


@pytest.mark.parametrize("own", [False, True])
def test_sums_that_are_zero_have_no_sign(own):
    """-0 plus products of -0 is +0, with constant weights and with weights of each sample."""
    step, less = Graph(), np.full((1, 2, 2), -1, bfloat16)
    step.add_input("x", (1, 1, 2))
    weights = step.add_input("w", less.shape) if own else step.add_constant("w", less)
    start = step.add_constant("start", np.full((1, 1, 2), -0.0, np.float32))
    step.add_stage(Stage("y", (Term("x", weights),), start=start), 2, wide=True)
    values, _ = run_step(step, {"x": np.zeros((1, 1, 1, 2), bfloat16)} | ({"w": less[None]} if own else {}))
    assert (values["y"] == 0).all() and not np.signbit(values["y"]).any()

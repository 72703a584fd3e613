"""Tests of the training graph that is derived from a network, and of the errors for networks that cannot be trained."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from amaranth_tpu.sim.models.shipped import SHIPPED
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked


def test_the_default_network():
    found = with_parameters(load_network(SHIPPED["default"]))
    shapes = [(1, 784, 128), (1, 1, 128), (1, 128, 10), (1, 1, 10)]
    assert [one.initial.shape for one in found.parameters.values()] == shapes
    first, second = found.stages
    assert [*found.parameters] == [first.terms[0].weights, first.start, second.terms[0].weights, second.start]
    assert [one.decays for one in found.parameters.values()] == [True, False] * 2
    assert found.differentiated == (0, 1)


@pytest.mark.parametrize("keep", [False, True])
def test_a_last_softmax_is_left_out(keep):
    network = load_network(SHIPPED["d"], keep)
    assert network.stages[-1].softmax == keep
    found = with_parameters(network)
    assert found.softmax and not found.stages[-1].softmax


@pytest.mark.parametrize("name, shapes", {"a": 8, "b": 8, "c": 10, "d": 2}.items())
def test_shipped_networks(name, shapes):
    assert len(with_parameters(load_network(SHIPPED[name])).parameters) == shapes


def test_stages_before_the_first_parameter_have_no_gradient(rng):
    first = GivenStage("scale", "s", (GivenTerm("x", random_values(rng, (1, 1, 1, 4)), groups=4, fixed=True),))
    second = GivenStage("dense", "y", (GivenTerm("s", random_values(rng, (1, 1, 4, 3))),))
    found = with_parameters(linked("g", Tensor("x", 4), (first, second)))
    assert found.differentiated == (1,) and len(found.parameters) == 1


def _network(rng, **changes):
    """Returns a graph of a convolution of a 9 x 9 input, with `changes` to its stage or term, and a dense layer."""
    term = GivenTerm("x", random_values(rng, (2, 2, 2, 4)))
    stage = GivenStage("conv", "c", (term,), changes.pop("size", (4, 4)), title="operator Conv, node 'first'", **changes)
    size = stage.result_size
    dense = GivenStage("dense", "y", (GivenTerm("c", random_values(rng, (*size, 4, 3))),))
    return linked("g", Tensor("x", 2, 9, 9), (stage, dense))


@pytest.mark.parametrize(
    "changes, cause",
    [
        ({"function": Function("reciprocal")}, "function reciprocal"),
        ({"pool": Pool((2, 2), (3, 3)), "function": Function("tanh")}, "function tanh follows pooling windows"),
        ({"pool": Pool((2, 2), (2, 2), (2, 2), padding=(1, 0))}, "padding"),
        ({"pool": Pool((3, 3), (2, 2), (3, 3))}, "padding"),
        ({"pool": Pool((16, 16), (1, 1), (16, 16)), "size": (16, 16)}, "255 positions"),
        ({"origin": (1, 0), "size_of_result": True}, "several parts"),
    ],
)
def test_refusals(rng, changes, cause):
    changes = dict(changes)
    if changes.pop("size_of_result", False):
        graph = _network(rng, **changes)
        graph = replace(graph, tensors=graph.tensors | {"c": Tensor("c", 4, 5, 4)})
    else:
        graph = _network(rng, **changes)
    with pytest.raises(ModelError, match="operator Conv, node 'first': ") as refused:
        with_parameters(graph)
    assert cause in str(refused.value) and "\n" not in str(refused.value)


def _in_parts(rng, **changes):
    """Returns a graph of a dense layer, a tensor of two parts, and a last layer. The first part has `changes`."""
    weights = random_values(rng, (1, 1, 1, 4))
    first = GivenStage("first", "t", (GivenTerm("d", weights, groups=4, fixed=True),), title="operator Concat, node 'both'")
    stages = (
        GivenStage("dense", "d", (GivenTerm("x", random_values(rng, (1, 1, 3, 4))),)),
        replace(first, **changes),
        replace(first, name="second", origin=(0, 1)),
        GivenStage("last", "y", (GivenTerm("t", random_values(rng, (1, 2, 4, 3))),)),
    )
    return linked("g", Tensor("x", 3), stages)


def test_refusals_of_parts(rng):
    """Parts have no weights, are disjoint, and do not read other parts."""
    graph, trained = _in_parts(rng), GivenTerm("d", random_values(rng, (1, 1, 4, 4)))
    assert [*with_parameters(graph).parameters] == ["dense.weights", "last.weights"]
    reading = GivenTerm("t", random_values(rng, (1, 1, 1, 4)), groups=4, fixed=True)
    for one in (
        _in_parts(rng, terms=(trained,)),
        _in_parts(rng, terms=(reading,)),
        _in_parts(rng, size=(1, 2)),
        replace(graph, stages=(*graph.stages[:2], *graph.stages[3:])),
    ):
        with pytest.raises(ModelError, match="^operator Concat, node 'both': computes its result in several parts"):
            with_parameters(one)


def test_equal_weights(rng):
    """Layers with equal weights, as the steps of an LSTM, have one parameter if the weights are equal in the network with other
    weights, too. Weights of one number, and biases without such a network, may be equal by chance."""
    values, bias, other = random_values(rng, (3, 3)), np.float32([1, 2, 3]), random_values(rng, (3, 3))

    def network(first, second):
        return dense_chain("g", [("one", first, bias, "relu"), ("two", second, bias, "none")])

    def names(apart):
        return [*with_parameters(network(values, values), apart=apart).parameters]

    weights, biases = ["one.weights", "two.weights"], ["one.bias", "two.bias"]
    assert names(None) == ["one.weights", *biases]
    assert names(lambda: network(other, other)) == ["one.weights", "one.bias"]
    assert names(lambda: network(other, values)) == ["one.weights", "one.bias", "two.weights"]
    same = np.full_like(values, 0.5)
    assert {*with_parameters(network(same, same)).parameters} == {*weights, *biases}
    for apart in (lambda: None, lambda: dense_chain("g", [("other", values, None, "none")])):
        with pytest.raises(ModelError, match="stage 'two': has the weights of an operator before it"):
            names(apart)


def test_the_end_of_the_network(rng):
    chain = dense_chain(
        "g", [("one", random_values(rng, (4, 3)), None, "none"), ("two", random_values(rng, (3, 3)), None, "relu")]
    )
    with pytest.raises(ModelError, match="ends in relu"):
        with_parameters(chain)
    chain = dense_chain("g", [("one", random_values(rng, (4, 3)), None, "none")])
    with pytest.raises(ModelError, match="repeats"):
        with_parameters(replace(chain, output_order=np.array([0, 1, 1])))
    (stage,) = chain.stages
    chain = replace(chain, stages=(replace(stage, terms=(replace(stage.terms[0], fixed=True),)),))
    with pytest.raises(ModelError, match="no weights"):
        with_parameters(chain)


def test_one_result_is_refused(rng):
    """A network with a single output is refused, because the Softmax of one number is always 1: loss 0 and accuracy 100 %."""
    dense = GivenStage("dense", "y", (GivenTerm("x", random_values(rng, (1, 1, 4, 1))),), title="operator Gemm 'last'")
    graph = linked("g", Tensor("x", 4), (dense,))
    with pytest.raises(ModelError, match="operator Gemm 'last': has one result, whose Softmax is always 1"):
        with_parameters(graph)

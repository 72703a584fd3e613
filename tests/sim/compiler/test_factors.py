"""Tests of factors and terms that are broadcast: one number for all channels of a position (`sim/compiler/passes/factors.py`),
and one position for all results (stride 0). Compiled programs must match the golden model bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.passes.factors import widen_factors
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.stage import Tensor, Term
from graph_steps import run_on_model
from graphs import check, random_values
from stage_graphs import GivenStage, GivenTerm, linked
from step_networks import Builder
from suites import slow

CORE = Config(n=4, unified_buffer_depth=512, accumulator_depth=64, table_lanes=2, transpose=True)


def _dense(rng, source, inputs, outputs, **geometry):
    return GivenTerm(source, random_values(rng, (1, 1, inputs, outputs), inputs**-0.5), **geometry)


def _product(rng, size, channels, reads_again, is_product):
    """x -> a, s; b = a s, where s has one channel; y is a dense layer of b.

    With `reads_again`, y reads s too. With `is_product`, s is a product, which may be -0, and b is the output.
    """
    made = {"times": "p"} if is_product else {"function": Function("tanh")}
    stages = [
        GivenStage("a", "a", (_dense(rng, "x", 3, channels),), size),
        GivenStage("p", "p", (_dense(rng, "x", 3, 1),), size, function=Function("relu")),
        GivenStage("s", "s", (_dense(rng, "x", 3, 1),), size, bias=np.full(1, -9 if is_product else 0.5, np.float32), **made),
        GivenStage("b", "b", (_dense(rng, "a", channels, channels),), size, times="s"),
        GivenStage("y", "y", (_dense(rng, "b", channels, 7), *([_dense(rng, "s", 1, 7)] if reads_again else [])), size),
    ]
    output = "b" if is_product else "y"
    stages = [stage for stage in stages if output == "y" or stage.output != "y"]
    return linked("g", Tensor("x", 3, *size), stages)


@pytest.mark.parametrize(
    "size,reads_again,is_product",
    [((1, 5), False, False), ((3, 2), True, False), ((1, 1), False, True), *slow(((1, 1), False, False), ((3, 4), False, True))],
)
def test_a_factor_with_one_channel_multiplies_all_channels(rng, size, reads_again, is_product):
    graph = _product(rng, size, int(rng.choice([3, 9])), reads_again, is_product)
    copies = len(widen_factors(graph, CORE, 1).stages) - len(graph.stages)
    assert copies == (reads_again or is_product)
    check(graph, CORE, 12 if is_product else 3, rng)  # in half of the samples, p is 0


@pytest.mark.parametrize("size,channels", [((3, 5), 9), *slow(((1, 6), 3), ((4, 1), 8))])
def test_a_term_of_stride_0_reads_one_position_everywhere(rng, size, channels):
    """x -> a, m of one position; b = a + m; c repeats m; y is a dense layer of b, c and m."""
    mean = GivenTerm("a", random_values(rng, (*size, 1, channels), 0.2), groups=channels)
    spread = GivenTerm("m", random_values(rng, (1, 1, 1, channels)), stride=(0, 0), groups=channels)
    stages = [
        GivenStage("a", "a", (_dense(rng, "x", 3, channels),), size),
        GivenStage("m", "m", (mean,), (1, 1)),
        GivenStage("b", "b", (_dense(rng, "a", channels, channels), spread), size),
        GivenStage("c", "c", (spread,), size),
        GivenStage(
            "y", "y", (*(_dense(rng, name, channels, 4) for name in "bc"), _dense(rng, "m", channels, 4, stride=(0, 0))), size
        ),
    ]
    check(linked("g", Tensor("x", 3, *size), stages), CORE, 2, rng)


@pytest.mark.parametrize("reads_again", [False, True])
def test_steps_with_a_trained_factor_of_one_channel(rng, reads_again):
    """The step of a gate with one channel, whose weights are trained, matches the golden model, also if another stage reads the
    gate."""
    network = Builder(rng)
    x = network.add_input("x", (1, 3, 6))
    gate = network.conv("gate", x, 1, function=Function("sigmoid"))
    network.conv("gated", x, 6, times=gate)
    shapes = {"gated": 6, "gate": 1} if reads_again else {"gated": 6}
    terms = [Term(name, network.weights(f"{name}.last", 3, channels, 4), (1, 3)) for name, channels in shapes.items()]
    network.output = network.stage("logits", 4, *terms, wide=True)
    run_on_model(compile_graph(make_step(network, Sgd()), replace(CORE, training=True), 3), Sgd(), rng)


@pytest.mark.parametrize("made", [{"function": Function("tanh")}, {"softmax": True}], ids=["table", "softmax"])
def test_a_product_of_sums_with_their_function(rng, made):
    """Both stages have the same sums. The function is written before the product reads it."""
    stages = [
        GivenStage("a", "a", (_dense(rng, "x", 3, 6),), (1, 4), **made),
        GivenStage("y", "y", (_dense(rng, "x", 3, 6),), (1, 4), times="a"),
    ]
    graph = linked("g", Tensor("x", 3, 1, 4), stages)
    graph.stages[1] = replace(graph.stages[1], terms=graph.stages[0].terms)
    check(graph, CORE, 2, rng)

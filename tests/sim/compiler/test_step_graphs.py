"""Tests that training steps of networks with convolutions, pooling, averages and residual sums match the golden model bit for
bit on the instruction-level model."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.codegen.job_writer import JobWriter
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.passes.cropping import crop
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.functions.functions import NONE, RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.stage import Pool, Stage, Tensor
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from suites import slow
from trainable_graphs import random_trainable_graph
from training_steps import convolutions, run_steps, selections, with_function

CONFIG = Config(n=4, training=True, unified_buffer_depth=2048)


def check(graph, rng, config=CONFIG, batch=3, steps=2):
    training, optimizer = with_parameters(graph), Sgd(0.75)
    program = compile_step(training, optimizer, config, batch)
    run_steps(program, training, optimizer, rng, steps)
    return program


@pytest.mark.parametrize("kind", ["plain", "pool", "average", "residual", "shortcut"])
def test_each_kind_of_stage(rng, kind):
    graph = random_trainable_graph(rng, stages=2, kinds=("plain", kind))
    check(graph, rng, Config(n=int(rng.choice([4, 8])), training=True, transpose=bool(rng.integers(2))), int(rng.integers(1, 7)))


@pytest.mark.parametrize("padding", [0, 1])
def test_overlapping_averages(rng, padding):
    """AveragePool with windows of 3 x 3 and stride 2, so that a position is in up to four windows."""
    ninth = np.full((3, 3, 1, 5), 1 / 9, np.float32).astype(bfloat16)
    average = GivenTerm("c", ninth, (2, 2), padding=(padding, padding), groups=5, fixed=True)
    last = GivenTerm("a", random_values(rng, (3 + padding, 2 + padding, 5, 4)))
    stages = (
        GivenStage("c", "c", (GivenTerm("x", random_values(rng, (3, 3, 3, 5)), padding=(1, 1)),), (7, 5), function=RELU),
        GivenStage("a", "a", (average,), (3 + padding, 2 + padding)),
        GivenStage("y", "y", (last,), (1, 1)),
    )
    check(linked("averages", Tensor("x", 3, 7, 5), stages), rng)


def test_results_named_as_their_stage(rng):
    """A training step matches the golden model if stages have the same names as their outputs. In the network, a dense layer
    reads values scaled by a depthwise stage."""
    graph = random_trainable_graph(rng, stages=2, kinds=("plain",))
    first, second, dense, *rest = graph.stages
    channels, graph.stages = graph.channels(second), [first, second]
    term = graph.term("t1", "factors", random_values(rng, (1, 1, 1, channels)), groups=channels, fixed=True)
    graph.add_stage(Stage("scale", (term,), second.size, name="scale"), channels)
    graph.stages += [replace(dense, terms=(replace(dense.terms[0], source="scale"),)), *rest]
    check(graph, rng)


@pytest.mark.parametrize("kind", ["plain", "pool", *slow("average"), "residual", *slow("shortcut")])
def test_steps_with_table_functions(rng, kind):
    """A training step matches the golden model with a table function after each kind of stage. The gradients, multiplied by the
    derivative, are operands of windows and of tensors with inserted zeros."""
    graph = random_trainable_graph(rng, stages=2, kinds=("plain", kind), tables=1)
    check(graph, rng, Config(n=int(rng.choice([4, 8])), training=True), int(rng.integers(1, 7)))


def test_a_function_of_averages(rng):
    """With a function after a 2 x 2 average of stride 2, the gradient is multiplied by the derivative before zeros are inserted.
    The step matches the golden model's step."""
    weights, outer = random_values(rng, (3, 3, 2, 5), 0.3), random_values(rng, (2, 2, 5, 3), 0.3)
    share = np.full((2, 2, 1, 5), 0.25, bfloat16)
    stages = (
        GivenStage("conv", "c", (GivenTerm("x", weights),), (4, 4)),
        GivenStage("mean", "m", (GivenTerm("c", share, (2, 2), groups=5, fixed=True),), (2, 2), function=Function("tanh")),
        GivenStage("dense", "y", (GivenTerm("m", outer),)),
    )
    check(linked("g", Tensor("x", 2, 6, 6), stages), rng)


def test_convolutions_share_table_loads(rng):
    """Layers with the same function select its table once, and then its derivative's table once."""
    program = check(with_function(convolutions(rng, (5, 9), 12, 3, 1), Function("tanh")), rng, steps=1)
    assert len(selections(program.ops)) == 2


def test_jobs_that_take_turns_share_table_loads(rng):
    """Layers of several jobs with the same function take turns, but not with layers of other functions."""
    program = check(
        with_function(convolutions(rng, (8, 16), 14, 10, 16), Function("tanh")), rng, Config(n=8, training=True), 4, 1
    )
    assert len(selections(program.ops)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_random_graphs(rng, number):
    graph = random_trainable_graph(rng, stages=int(rng.integers(1, 5)), tables=0.3)
    config = Config(n=int(rng.choice([2, 4, 8])), training=True, transpose=bool(rng.integers(2)))
    check(graph, rng, config, int(rng.integers(1, 12)))


@pytest.mark.smoke
def test_weight_gradients_of_several_passes(rng):
    """A training step matches the golden model if weight gradients take several passes over the batch, and if a plane of results
    takes several jobs."""
    check(convolutions(rng, (5, 9), 12, 3, 7), rng, Config(n=4, training=True, accumulator_depth=64), steps=1)


@pytest.mark.parametrize("side", [1, 3])
def test_dense_stage_with_three_windows(rng, side):
    """A dense stage with three terms gives the golden model's step: one reads the whole tensor, one a padded corner, one the
    first position."""
    kernels = [(side, (0, 0)), (3, (1, 1)), (1, (0, 0))]
    terms = tuple(GivenTerm("a", random_values(rng, (size, size, 5, 7)), (2, 2), padding=pad) for size, pad in kernels)
    first = GivenStage("conv", "a", (GivenTerm("x", random_values(rng, (2, 2, 3, 5))),), (side, side), function=RELU)
    stages = (
        first,
        GivenStage("sum", "s", terms, function=RELU),
        GivenStage("dense", "y", (GivenTerm("s", random_values(rng, (1, 1, 7, 4))),)),
    )
    check(linked("corner", Tensor("x", 3, side + 1, side + 1), stages, softmax=True), rng)


@pytest.mark.parametrize("dense", [True, False])
def test_dropout_masks_ignore_cropping(rng, dense):
    """Dropout applies to the stages that the full network defines, even if cropping makes another stage dense. Without another
    dense layer, the last stage's operands are masked."""
    first = GivenStage("conv", "a", (GivenTerm("x", random_values(rng, (2, 2, 3, 5))),), (2, 2), function=RELU)
    middle = GivenStage("dense", "b", (GivenTerm("a", random_values(rng, (1, 1, 5, 4)), (2, 2)),), function=RELU)
    last = GivenStage("last", "y", (GivenTerm("b" if dense else "a", random_values(rng, (1, 1, 4 if dense else 5, 3)), (2, 2)),))
    stages = (first, middle, last) if dense else (first, last)
    training, dropout = with_parameters(linked("masks", Tensor("x", 3, 3, 3), stages, softmax=True)), Dropout(0.5)
    assert dropout.stages(training) == ((1,) if dense else (0,)) and len(dropout.stages(crop(training, None, None))) == 1 + dense
    program = compile_step(training, Sgd(0.75), CONFIG, 3, dropout)
    run_steps(program, training, Sgd(0.75), rng, dropout=dropout)


@pytest.mark.slow
@pytest.mark.parametrize("n, batch", [(4, 2), (8, 3), (16, 5)])
def test_network_a(rng, n, batch):
    check(convolutions(rng, (32, 64)), rng, Config(n=n, training=True), batch, steps=1)


@pytest.mark.slow
@pytest.mark.search
def test_cycles_of_network_a(rng):
    """A step of network `a` with n = 16, batch 64 and latency 32 takes at most 2,500,000 cycles (65 % utilisation)."""
    program = compile_step(with_parameters(convolutions(rng, (32, 64))), Sgd(), Config(training=True), 64)
    assert program.predicted_cycles <= 2_500_000


def test_unread_results_are_cropped(rng):
    """Cropping removes the sums that no window reads: the second convolution needs 12 x 12 of 13 x 13 results."""
    training = crop(with_parameters(convolutions(rng, (32, 64))), None, None)
    first, second = training.stages[:2]
    assert (first.size, first.pool.size, second.size) == ((24, 24), (12, 12), (10, 10))


def test_refusal_in_one_line(rng):
    training = with_parameters(convolutions(rng, (32, 64)))
    with pytest.raises(CompileError, match="^stage [^\n]*: unified_buffer_depth = 128[^\n]*$"):
        compile_step(training, Sgd(), Config(n=4, training=True, unified_buffer_depth=128), 4)


def test_unfinished_jobs_are_noticed(rng, monkeypatch):
    """An order of jobs that leaves windows unfinished does not become a program."""
    monkeypatch.setattr(JobWriter, "is_open", lambda *_: False)
    with pytest.raises(AssertionError, match="jobs are left unfinished"):
        compile_step(with_parameters(convolutions(rng, (5, 9), 12, 3, 7)), Sgd(), CONFIG, 3)


def test_useful_multiplications(rng):
    """A step of convolutions multiplies weights by their sources, and the gradient of sums by sources and, but for the input, by
    weights. Pooling leaves 8 x 8 sums of the first convolution, and 2 x 2 of the second."""
    training = with_parameters(convolutions(rng, (5, 9), 12, 3, 7))
    program = compile_step(training, Sgd(), CONFIG, 3)
    first, second, dense, last = (
        training.parameters[term.weights].initial.size for stage in training.stages for term in stage.terms
    )
    assert program.useful_macs == 3 * (2 * 64 * first + 3 * 4 * second + 3 * dense + 3 * last)


def test_one_line_of_windows_with_a_longer_stride(rng):
    """A stride has no meaning for one line of windows."""
    pool, term = Pool((2, 2), (1, 4), (3, 2)), GivenTerm("x", random_values(rng, (1, 1, 3, 9)))
    stages = (
        GivenStage("conv", "c", (term,), (4, 9), pool=pool),
        GivenStage("dense", "y", (GivenTerm("c", random_values(rng, (1, 4, 9, 3))),)),
    )
    check(linked("line", Tensor("x", 3, 4, 9), stages), rng)


@pytest.mark.parametrize("function", [RELU, NONE])
def test_pooling_of_one_position_before_a_gate(rng, function):
    """The places of maxima in windows of one position are 0, or with ReLU nowhere. The gate keeps all positions."""
    first = GivenTerm("x", random_values(rng, (3, 3, 3, 5)))
    stages = (
        GivenStage("conv", "c", (first,), (4, 4), pool=Pool((1, 1), (4, 4)), function=function),
        GivenStage("gate", "g", (GivenTerm("c", random_values(rng, (1, 1, 5, 5))),), (4, 4), times="c"),
        GivenStage("dense", "y", (GivenTerm("g", random_values(rng, (4, 4, 5, 3))),)),
    )
    check(linked("gated", Tensor("x", 3, 6, 6), stages), rng)


def test_padding_is_no_useful_multiplication(rng):
    """Multiplications by padding count neither in a network nor in the three products of its step, counted one by one."""
    size, stride, dilation, padding = (int(rng.integers(*ends)) for ends in ((4, 9), (1, 4), (1, 3), (1, 3)))
    count = (size + 2 * padding - 2 * dilation - 1) // stride + 1
    places = [y * stride + k * dilation - padding for y in range(count) for k in range(3)]
    inside = sum(0 <= place < size for place in places) ** 2
    first = GivenTerm("x", random_values(rng, (3, 3, 2, 4)), (stride,) * 2, (dilation,) * 2, (padding,) * 2)
    second = GivenTerm("h", random_values(rng, (3, 3, 2, 6)), padding=(1, 1), groups=2)
    dense = GivenTerm("y", random_values(rng, (count, count, 6, 5)))
    sizes = (count, count)
    stages = [GivenStage("c0", "h", (first,), sizes), GivenStage("c1", "y", (second,), sizes), GivenStage("d", "z", (dense,))]
    graph = linked("padded", Tensor("x", 2, size, size), stages, softmax=True)
    macs = [inside * 8, (3 * count - 2) ** 2 * 12 if count > 1 else 12, count**2 * 30]
    assert graph.macs == macs
    step = compile_step(with_parameters(graph), Sgd(), CONFIG, 3)
    assert step.useful_macs == 3 * (2 * macs[0] + 3 * macs[1] + 3 * macs[2])

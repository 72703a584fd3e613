"""Tests that training steps with Adam, weight decay and dropout match the golden model bit for bit on the instruction-level
model."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.step_state import with_rate
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from trainable_graphs import random_trainable_graph
from training_steps import batch_of, chain, convolutions, run_steps

#: Layer widths of a network from early TPU demonstrations.
FIRST = (784, 32, 64, 128, 10)


def check(graph, rng, optimizer, n=4, batch=6, dropout=None, steps=2):
    training = with_parameters(graph)
    program = compile_step(training, optimizer, Config(n=n, training=True), batch, dropout)
    run_steps(program, training, optimizer, rng, steps, dropout=dropout)
    return program


def test_decay_of_convolutions(rng):
    """Weight decay applies to weights but not to biases, although the first layer stores both together."""
    check(convolutions(rng, (5, 9), 12, 3, 7), rng, Sgd(0.5, 0.1), steps=1)


@pytest.mark.parametrize("optimizer", [Sgd(0.5, clip_value=0.01), Adam(clip_value=0.01)], ids=["sgd", "adam"])
def test_clipped_values(rng, optimizer):
    check(chain(rng, (9, 7, 5)), rng, optimizer)


@pytest.mark.parametrize("limit", [0.01, 1e25])
def test_clipped_norm_of_one_input(rng, limit):
    """Weights of one input have a row for each output on a core, unlike a bias, which has their shape. With a limit of 1e25, the
    core has 0 in place of the norm, as without gradients, and the factor is 1."""
    check(chain(rng, (1, 9, 1, 5)), rng, Sgd(0.5, clip_norm=limit), n=2)


@pytest.mark.parametrize("optimizer", [Sgd(0.5), Adam()], ids=["sgd", "adam"])
def test_dropout(rng, optimizer):
    check(chain(rng, (9, 7, 6, 5)), rng, optimizer, batch=11, dropout=Dropout(0.5, 3))


def test_dropout_behind_convolutions(rng):
    """Without hidden dense layers, dropout masks the operands of the last layer, and the step matches the golden model's step."""
    graph = random_trainable_graph(rng, stages=2, kinds=("pool",), tables=0.5)
    while len([stage for stage in graph.stages if stage.size == (1, 1)]) > 1:
        graph = random_trainable_graph(rng, stages=2, kinds=("pool",), tables=0.5)
    check(graph, rng, Sgd(), dropout=Dropout(0.25, 5))


def test_masks_are_checked(rng):
    training, dropout = with_parameters(chain(rng, (9, 7, 5))), Dropout(0.5)
    program = compile_step(training, Sgd(), Config(n=4, training=True), 6, dropout)
    x, targets = batch_of(training, 6, rng)
    with pytest.raises(ValueError, match="mask of stage dense0 must be"):
        program.pack_input(x, targets)
    masks = dropout.masks(training, 0, 6)
    masks[0] = masks[0] * masks[0].dtype.type(0.5)
    with pytest.raises(ValueError, match="no numbers but 0 and 2"):
        program.pack_input(x, targets, masks)


@pytest.mark.slow
@pytest.mark.search
def test_cycles_of_adam(rng):
    """For 784-128-10, an Adam step takes between one and 3.1 times the cycles of an SGD step."""
    training = with_parameters(chain(rng, (784, 128, 10)))
    sgd, adam = (compile_step(training, one, Config(training=True), 64).predicted_cycles for one in (Sgd(), Adam()))
    assert sgd < adam < 3.1 * sgd


@pytest.mark.slow
@pytest.mark.search
def test_cycles_of_adam_with_dropout(rng):
    """For 32, 64 and 128 hidden units and dropout 0.5, an Adam step takes less than three times the cycles of SGD and matches
    the golden model's step."""
    training, cycles = with_parameters(chain(rng, FIRST)), []
    for optimizer in (Sgd(), Adam()):
        program = compile_step(training, optimizer, Config(training=True), 1024, Dropout(0.5))
        cycles.append(program.predicted_cycles)
    assert cycles[1] < 3 * cycles[0]
    run_steps(program, training, Adam(), rng, 1, dropout=Dropout(0.5))


@pytest.mark.parametrize("name, optimizer", [("Adam", Adam()), ("clip_norm", Sgd(clip_norm=1.0))])
def test_updates_that_need_a_table(rng, name, optimizer):
    with pytest.raises(CompileError, match=f"^{name} needs a core with table_lanes[^\n]*$"):
        compile_step(with_parameters(chain(rng, (9, 7, 5))), optimizer, Config(n=4, training=True, table_lanes=0), 6)


def test_adam_factors_are_constant_tiles(rng):
    """The image of the next Adam update differs only in four bfloat16 factors on the diagonals."""
    training = with_parameters(chain(rng, (9, 7, 5)))
    program = compile_step(training, Adam(), Config(n=4, training=True), 6)
    one, other = (np.frombuffer(with_rate(program, 0.001, step), np.uint16) for step in (1, 2))
    assert (one != other).sum() == 4

"""Tests that training steps of dense layers match the golden model bit for bit on the instruction-level model."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.step_state import with_rate
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.step_graph import step_graph
from amaranth_tpu.sim.golden.training import bound_graph, initial_state
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.step_macs import step_macs
from suites import slow
from trainable_graphs import random_trainable_graph
from training_steps import chain, run_steps

#: Array size n, batch, optimizer, dropout rate.
FUNCTIONS = [(4, 9, Adam(), 0.5), *slow((8, 30, Sgd(0.75, 0.01), 0.0), (2, 5, Adam(), 0.0), (16, 40, Adam(), 0.5))]


@pytest.mark.parametrize("end", ["none", "relu", "sigmoid"])
def test_results_of_squared_error_are_read_after_they_are_stored(rng, end):
    training, optimizer = with_parameters(chain(rng, (5, 6, 4), end=end), Loss.SQUARED_ERROR), Sgd()
    run_steps(compile_step(training, optimizer, Config(n=4, training=True), 4), training, optimizer, rng)


def test_without_biases(rng):
    training, optimizer = with_parameters(chain(rng, (9, 11, 5), biased=False)), Sgd()
    run_steps(compile_step(training, optimizer, Config(n=4, training=True), 6), training, optimizer, rng)


@pytest.mark.parametrize("n, batch, optimizer, share", FUNCTIONS)
def test_steps_with_table_functions(rng, n, batch, optimizer, share):
    """A step of layers with table functions matches the golden model's step, with batches of several chunks, with Adam, and with
    dropout."""
    graph = random_trainable_graph(rng, kinds=(), channels=3 * n, tables=0.8)
    training, dropout = with_parameters(graph), Dropout(share)
    program = compile_step(training, optimizer, Config(n=n, training=True), batch, dropout)
    run_steps(program, training, optimizer, rng, dropout=dropout)


@pytest.mark.slow
@pytest.mark.parametrize("n, batch", [(4, 64), (8, 64), (16, 64), (16, 100), (16, 128)])
def test_the_shipped_network(rng, n, batch):
    training, optimizer = with_parameters(chain(rng, (784, 128, 10))), Sgd()
    run_steps(compile_step(training, optimizer, Config(n=n, training=True), batch), training, optimizer, rng, steps=1)


@pytest.mark.parametrize("batch, most", [(64, 73_000), *slow((128, 126_000))])
@pytest.mark.search
def test_cycles_of_a_dense_step(rng, batch, most):
    """A step of 784-128-10 with n = 16 and a memory latency of 32 takes at most 73,000 cycles at batch 64 and 126,000 at batch
    128 (70 and 81 % utilisation)."""
    program = compile_step(with_parameters(chain(rng, (784, 128, 10))), Sgd(), Config(training=True), batch)
    assert program.predicted_cycles <= most
    assert program.useful_macs == batch * (2 * 784 * 128 + 3 * 128 * 10)


@pytest.mark.parametrize("frozen, wanted", [("first", 96 + 3 * 40), ("second", 2 * 96 + 2 * 40)])
def test_products_with_frozen_weights_count(rng, frozen, wanted):
    training = with_parameters(chain(rng, (12, 8, 5)))
    weights = [name for name in training.parameters if name.endswith("weights")]
    bound = bound_graph(training, initial_state(training, Sgd()), [weights[frozen == "second"]])
    assert step_macs(step_graph(bound, Sgd())) == wanted


def test_learning_rate_is_a_constant_tile(rng):
    """A new learning rate changes only four bfloat16 constants of the program's image."""
    training = with_parameters(chain(rng, (9, 11, 5)))
    program = compile_step(training, Sgd(), Config(n=4, training=True), 6)
    one, other = (np.frombuffer(with_rate(program, rate), np.uint16) for rate in (0.1, 0.05))
    assert len(one) == len(other) == len(program.model) // 2
    assert (one != other).sum() == 4


def test_refusals(rng):
    training = with_parameters(chain(rng, (9, 11, 5)))
    with pytest.raises(CompileError, match="needs a core with training"):
        compile_step(training, Sgd(), Config(n=4), 6)
    training = with_parameters(random_trainable_graph(rng, kinds=(), tables=1))
    with pytest.raises(CompileError, match="^stage dense0: its function [^\n]* needs a core with table_lanes; [^\n]*$"):
        compile_step(training, Sgd(), Config(n=4, training=True, table_lanes=0), 6)


def test_weights_are_read_before_they_change(rng):
    """Each LOAD_WEIGHTS of a parameter for a data gradient precedes the STORE of the updated parameter."""
    training = with_parameters(chain(rng, (9, 11, 12, 5)))
    program = compile_step(training, Sgd(), Config(n=4, training=True), 6)
    stored, read = set(), set()
    masters = [program.tensors[name].rows for name in program.memory.step.masters.values()]
    for op in program.ops:
        if op.opcode is Opcode.STORE:
            stored.add(op.fields["offset"])
        elif op.opcode is Opcode.LOAD_WEIGHTS and op.fields["region"].name == "SCRATCH":
            first = op.fields["offset"] // program.config.vector_bytes
            if any(rows.start <= first < rows.stop for rows in masters):
                assert op.fields["offset"] not in stored
                read.add(op.fields["offset"])
    assert read & stored, "the program reads no parameter that it updates"

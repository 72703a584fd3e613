"""Tests that several training steps in one RTL simulation match the golden model bit for bit in every parameter, optimizer state
and logit."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.step_state import pack_state, unpack_states, with_rate
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.training import step
from amaranth_tpu.sim.host.host_image import HostImage
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from trainable_graphs import random_trainable_graph
from training_steps import batch_of, chain, convolutions, differences, started_state, with_function


def run_on_rtl(program, training, optimizer, rng, simulator, *, steps=3, rate=0.1, dropout=None, memory=None):
    """Runs `steps` steps in one simulation and compares memory after each with the golden model's step. Returns the counters of
    each step."""
    state = started_state(training, optimizer, rng)
    runs, wanted = [], state
    for number in range(steps):
        x, targets = batch_of(training, program.batch, rng)
        masks = dropout.masks(training, number, program.batch) if dropout else None
        result = step(training, wanted, optimizer, x, targets, rate, masks)
        wanted = result.state
        runs.append((with_rate(program, rate, number + 1), [program.pack_input(x, targets, masks)]))
        rate /= 2
    host = HostImage(program, runs, [pack_state(program, state)])
    raw = host.simulate(simulator=simulator, memory=memory)
    assert raw["fault"] is None and raw["protocol_errors"] == 0
    (found,) = unpack_states(program, host.read(raw["output"], "SCRATCH"), steps)
    assert not differences(training, found, wanted)
    logits = program.unpack_output(*host.read(raw["output"], "OUTPUT", -1))
    assert (logits.view(np.uint32) == result.logits.view(np.uint32)).all()
    return raw["batches"]


def _with_function(stage, function):
    return replace(stage, function=function)


SIMULATORS = pytest.mark.parametrize("simulator", ["verilator", "icarus"])


def check(graph, rng, simulator, optimizer=None, n=4, batch=5, dropout=None, transpose=False, lanes=0, **more):
    training, optimizer = with_parameters(graph), optimizer or Sgd(0.75, 0.01)
    config = Config(n=n, training=True, transpose=transpose, update_lanes=lanes)
    program = compile_step(training, optimizer, config, batch, dropout)
    counters = run_on_rtl(program, training, optimizer, rng, simulator, dropout=dropout, **more)
    return program, counters


@pytest.mark.slow
@SIMULATORS
@pytest.mark.parametrize("lanes, decay", [(1, 0), (2, 0.01), (4, 0)])
def test_update_lanes(rng, simulator, lanes, decay):
    memory = {"latency": int(rng.integers(1, 60)), "pause_percent": int(rng.integers(0, 60))}
    check(chain(rng, (40, 13, 6, 5)), rng, simulator, Sgd(0.75, decay), lanes=lanes, memory=memory)


@pytest.mark.slow
def test_predicted_cycles_with_update_lanes(rng):
    """With update lanes, the predicted cycles of a step are within 2 % of the RTL's."""
    program, counters = check(chain(rng, (200, 64, 10)), rng, "verilator", Sgd(), 8, 32, lanes=2, steps=1)
    assert abs(counters[0]["cycles"] - program.predicted_cycles) < 0.02 * program.predicted_cycles


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_random_graphs(rng, number):
    check(random_trainable_graph(rng, stages=3, tables=0.3), rng, "verilator", steps=2, transpose=number % 2 == 1)


@pytest.mark.slow
@SIMULATORS
def test_steps_with_table_functions(rng, seed, simulator):
    """A step with Adam and dropout matches the golden model if convolutions with pooling and a dense layer use different table
    functions."""
    graph = convolutions(rng, (3, 5), 12, 3, 6)
    functions = map(Function, ("tanh", "gelu", "sigmoid"))
    graph = replace(graph, stages=(*map(_with_function, graph.stages, functions), graph.stages[-1]))
    memory = {"latency": int(rng.integers(1, 60)), "pause_percent": int(rng.integers(0, 60)), "pause_seed": seed % 1000}
    check(graph, rng, simulator, Adam(), batch=3, dropout=Dropout(0.5), steps=2, memory=memory)


@pytest.mark.slow
def test_predicted_cycles_are_near(rng):
    """The predicted cycles of a step are within 6 % of the RTL's, or 10 % with tanh. Each table load is predicted about 1,000
    cycles too short."""
    dense, others, tanh = chain(rng, (100, 40, 10)), convolutions(rng, (8, 16), 14, 10, 16), Function("tanh")
    tables = (with_function(dense, tanh), 16, 0.1), (with_function(others, tanh), 4, 0.1)
    for graph, batch, most in ((dense, 16, 0.06), (others, 4, 0.06), *tables):
        program, counters = check(graph, rng, "verilator", n=8, batch=batch, steps=1)
        assert abs(counters[0]["cycles"] - program.predicted_cycles) < most * program.predicted_cycles

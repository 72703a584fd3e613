"""Tests that training steps on the RTL match the golden model bit for bit in every parameter, momentum and logit, for any bus
stalls."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.ir.optimizers import Adam
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from amaranth_tpu.sim.trainer.core_comparison import StepComparison
from amaranth_tpu.sim.trainer.core_steps import StepRunner
from amaranth_tpu.sim.trainer.loop import TrainingRun
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from training_runs import CLASSES, new_training
from training_steps import convolutions

STEPS = 3


def compared(rng, n, simulator, memory, together=None):
    """Trains for `STEPS` steps, compares each with the core, and checks the number of compared values. Returns the program and
    the comparison."""
    training = new_training(rng, count=8 * STEPS, epochs=1)
    program = compile_step(training.network, training.plan.optimizer, from_preset("training", n=n), training.plan.batch_size)
    runner = StepRunner(program, simulator, memory)
    comparison = StepComparison(training.network, runner, None, together or runner.together)
    TrainingRun(training=training, comparison=comparison)()
    assert comparison.failure is None and comparison.steps == STEPS, comparison.failure
    values = 10 * 8 + 8 + 8 * CLASSES + CLASSES
    assert comparison.values == STEPS * 8 * CLASSES + -(-STEPS // (together or STEPS)) * 2 * values
    return program, comparison


@pytest.mark.parametrize("n", [4, 8, 16])
def test_on_the_instruction_level_model(rng, n):
    """Training steps on the instruction-level model match the golden model, each starting from the golden model's state, or
    several from the core's own state."""
    for together in (1, 3):
        compared(rng, n, "model", {}, together)


def test_convolutions_by_adam_with_dropout(rng):
    """Adam steps with convolutions and dropout match the golden model, although rate, update number and masks differ in each
    step."""
    kernel, inner = random_values(rng, (3, 3, 1, 3), 0.5), random_values(rng, (2, 2, 3, 5), 0.5)
    outer = random_values(rng, (1, 1, 5, CLASSES), 0.5)
    biases = [np.zeros(count, np.float32) for count in (3, 5, CLASSES)]
    stages = (
        GivenStage("conv", "a", (GivenTerm("x", kernel, padding=(1, 1)),), (5, 5), biases[0], Pool((2, 2), (2, 2), (2, 2)), RELU),
        GivenStage("inner", "b", (GivenTerm("a", inner),), bias=biases[1], function=RELU),
        GivenStage("outer", "y", (GivenTerm("b", outer),), bias=biases[2]),
    )
    network = with_parameters(linked("small", Tensor("x", 1, 5, 5), stages))
    training = new_training(
        rng, network, count=24, epochs=1, inputs=25, optimizer=Adam(), learning_rate=0.01, dropout=Dropout(0.5)
    )
    program = compile_step(network, training.plan.optimizer, from_preset("training", n=4), 8, Dropout(0.5))
    comparison = StepComparison(network, StepRunner(program, "model"), None, 3)
    TrainingRun(training=training, comparison=comparison)()
    assert comparison.failure is None and comparison.steps == 3, comparison.failure


def test_every_wrong_bit_is_found(rng):
    """The comparison of training steps finds one wrong bit in any parameter, momentum or logit of the core."""
    training = new_training(rng, count=8)
    program = compile_step(training.network, training.plan.optimizer, from_preset("training", n=4), 8)
    runner, before = StepRunner(program, "model"), training.position.state
    batch = training.next_batch()
    _, logits = training.step(batch)
    found = runner(before, [batch])
    for array in (*found.states[0].masters, *(slots["momentum"] for slots in found.states[0].slots), *found.logits):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        kept, flat[0] = flat[0], flat[0] ^ 1
        array[...] = flat.view(array.dtype).reshape(array.shape)
        comparison = StepComparison(training.network, lambda *_: found, 1)
        comparison.add(before, batch, training.position.state, logits)
        assert comparison.mismatched_bits == 1
        flat[0] = kept
        array[...] = flat.view(array.dtype).reshape(array.shape)


def on_a_ring(rng, cores, n, simulator, memory=None, batch=2, **network):
    """Trains for `STEPS` steps on a ring of cores, and checks that no bit differs. Each core must send the formula's number of
    words. Returns the program and the comparison."""
    training = new_training(rng, count=batch * cores * STEPS, epochs=1, batch_size=batch * cores, cores=cores, **network)
    config = from_preset("training", n=n, ring=True)
    program = compile_step(training.network, training.plan.optimizer, config, batch, cores=cores)
    runner = StepRunner(program, simulator, memory or {}, timeout=900, quick=True)
    comparison = StepComparison(training.network, runner, None, STEPS, ring_words=program.ring_words)
    TrainingRun(training=training, comparison=comparison)()
    assert comparison.failure is None and comparison.steps == STEPS, comparison.failure
    return program, comparison


def test_on_a_ring_of_models(rng):
    program, comparison = on_a_ring(rng, 3, 4, "model")
    weights = 10 * 8 + 8 * CLASSES
    values = 2 * weights + 3 * 2 * (8 + CLASSES)  # state that the cores share, and each core's own biases
    assert comparison.values == STEPS * 6 * CLASSES + values
    assert comparison.ring_figures == {"words_sent": None, "formula": STEPS * program.ring_words}
    assert program.ring_words > 0


def ring_step(rng):
    """Returns the program of a step on three cores, its results, and a function that compares changed results, with the number of
    words that the cores should send."""
    training = new_training(rng, count=6, batch_size=6, cores=3)
    program = compile_step(training.network, training.plan.optimizer, from_preset("training", n=4, ring=True), 2, cores=3)
    before, batch = training.position.state, training.next_batch()
    _, logits = training.step(batch)

    def compare(found, words=None):
        comparison = StepComparison(training.network, lambda *_: found, 1, ring_words=words)
        comparison.add(before, batch, training.position.state, logits)
        return comparison

    return program, StepRunner(program, "model")(before, [batch]), compare


def test_wrong_copy_of_a_bias_is_found(rng):
    """The comparison of training steps finds a wrong bit in one core's copy of a bias."""
    _, found, compare = ring_step(rng)
    found.states[2].masters[1].reshape(-1).view(np.uint32)[3] ^= 1
    comparison = compare(found)
    assert comparison.mismatched_bits == 1 and "value of hidden.bias of core 2" in comparison.failure


def test_a_wrong_segment_counts_once(rng):
    """A wrong bit in a segment that the cores share is counted once, not once per core."""
    _, found, compare = ring_step(rng)
    found.states[2].masters[0].view(np.uint32)[0, 0, 0] ^= 1
    assert compare(found).mismatched_bits == 1


@pytest.mark.parametrize("less", [0, 1])
def test_wrong_number_of_ring_words_is_found(rng, less):
    """The comparison of training steps reports a core that sent one word less over the ring than the formula says, even if no bit
    differs."""
    program, found, compare = ring_step(rng)
    words = program.ring_words
    sent = [words, words, words - less]
    comparison = compare(replace(found, counters=[{"ring_sent": sent}]), words)
    assert comparison.mismatched_bits == 0
    assert comparison.failure == (f"the cores sent {sent} words over the ring in 1 steps, not {words} each" if less else None)


@pytest.mark.parametrize("simulator", ["model", pytest.param("verilator", marks=pytest.mark.slow)])
def test_two_convolutions_on_a_ring(rng, simulator):
    network = with_parameters(convolutions(rng, (5, 6), 12, CLASSES, 7))
    program, comparison = on_a_ring(rng, 4, 4, simulator, batch=1, network=network, inputs=144)
    assert simulator == "model" or comparison.ring_figures["words_sent"] == [program.ring_words * STEPS] * 4


@pytest.mark.slow
@pytest.mark.parametrize("cores", range(2, 9))
def test_on_a_ring_in_the_rtl(rng, seed, cores):
    memory = {"latency": int(rng.integers(1, 60)), "pause_percent": int(rng.integers(0, 60)), "pause_seed": seed % 1000}
    program, comparison = on_a_ring(rng, cores, 4, "verilator", memory)
    figures = comparison.figures(program.useful_macs, 16)
    assert figures["protocol_errors"] == 0 and figures["cycles"] == figures["busy"] + sum(figures["stalls"].values())
    assert comparison.ring_figures["words_sent"] == [program.ring_words * STEPS] * cores


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
@pytest.mark.parametrize("n", [4, 8])
def test_on_the_rtl(rng, seed, n, simulator):
    memory = {"latency": int(rng.integers(1, 60)), "pause_percent": int(rng.integers(0, 60)), "pause_seed": seed % 1000}
    program, comparison = compared(rng, n, simulator, memory)
    figures = comparison.figures(program.useful_macs, n * n)
    assert figures["protocol_errors"] == 0 and figures["cycles"] == figures["busy"] + sum(figures["stalls"].values())

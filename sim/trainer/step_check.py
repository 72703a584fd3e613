"""The check of a compiled training step before it is used: a model of the core runs steps on random samples, and the golden model
says which parameters, optimizer state and logits are right."""

from dataclasses import replace

import numpy as np

from ..data.labels import PADDING
from ..data.progress_lines import phase
from ..data.stress_samples import stress_samples
from ..golden.arithmetic import round_bfloat16
from ..golden.network import core_input
from ..golden.training import step
from ..host.inference import RunError
from ..host.program_check import checking, fault_of_compiler, is_slow, note_checked, say_unchecked, was_checked
from .core_comparison import StepComparison
from .core_steps import StepRunner
from .golden_training import Batch

__all__ = ["checked_step"]

_SEED = 21
#: Exponent of the largest numbers, and factor, of the samples: the first that gives finite results counts.
_SCALES = (8, 1), (0, 1), (0, 2.0**-8)


def checked_step(training, program):
    """Checks the program of a training step, unless any process checked it before. Returns it with `checked` set. Raises
    RunError if a bit differs from the golden model's, or the program ends with a fault. The message is one line.

    Two steps start at the state of `training`, so that the second one has the optimizer state of the first. If the golden model's
    steps are infinite or NaN for all random samples, the program stays unchecked, and a line says so.
    """
    name, memory = f"a training step of {training.network.name}", program.memory
    meaning = "step", str(memory.step), memory.optimizer, memory.factor
    if was_checked(program, *meaning):
        return replace(program, checked=True)
    with phase(checking(name, program)):
        count = 1 if is_slow(program, 2) else 2
        comparison = StepComparison(training.network, StepRunner(program, "model"), count, count)
        for scale in _SCALES:
            steps = _golden_steps(training, count, *scale)
            if steps:
                break
        else:
            say_unchecked(name)
            return program
        for one in steps:
            comparison.add(*one)
    if comparison.failure:
        raise RunError(fault_of_compiler(name, program, comparison.failure))
    note_checked(program, *meaning)
    return replace(program, checked=True)


def _golden_steps(training, count, most, factor):
    """Returns `[(state before, Batch, state after, logits)]` of steps on random samples."""
    plan, state, steps = training.plan, training.position.state, []
    for number in range(count):
        batch = _random_batch(training, number, most, factor)
        given = batch.x, batch.targets, batch.rate, batch.masks, training.sums, plan.cores, batch.counted
        with np.errstate(all="ignore"):
            result = step(training.network, state, plan.optimizer, *given)
        arrays = [values for name, values in result.tensors.items() if name not in training.network.constants]  # masks are -inf
        arrays += result.state.masters
        arrays += [array for slots in result.state.slots for array in slots.values()]
        if not all(np.isfinite(array.astype(np.float32)).all() for array in arrays):
            return None
        steps.append((state, batch, result.state, result.logits))
        state = result.state
    return steps


def _random_batch(training, number, most, factor):
    network, plan, random = training.network, training.plan, np.random.default_rng([_SEED, number])
    rows = factor * core_input(network, stress_samples(network, plan.batch_size, _SEED + number, most)).astype(np.float32)
    if not network.loss.is_of_classes:
        labels = round_bfloat16(random.standard_normal((plan.batch_size, network.output_size), np.float32))
    else:
        positions = training.objective.positions
        labels = random.integers(0, positions.classes, (plan.batch_size, len(positions)))
        if network.is_counted:
            labels[random.random(labels.shape) < 1 / 4] = PADDING
    targets, counted = training.objective.targets(labels)
    masks = plan.dropout.masks(network, number, plan.batch_size)
    return Batch(0, number, round_bfloat16(rows), labels, targets, counted, plan.learning_rate, masks)

"""Comparison of training steps with a second definition, bit for bit."""

import numpy as np

from amaranth_tpu.sim.golden.training import step
from reverse_graph import reverse_graph
from training_definition import defined_step
from training_steps import batch_of, started_state


def _same(one, two):
    one, two = (np.ascontiguousarray(values) for values in (one, two))
    return one.dtype == two.dtype and one.shape == two.shape and np.array_equal(one.view(np.uint8), two.view(np.uint8))


def steps_differ(training, optimizer, rng, batch, *, dropout=None, cores=1, steps=2, rate=0.1, sums=None):
    """Runs steps from one state by both definitions. Returns the names of arrays whose bits differ: logits, masters, slots,
    gradients of parameters, results of stages and gradients of sums."""
    state, differ = started_state(training, optimizer, rng), []
    for number in range(steps):
        x, targets = batch_of(training, batch * cores, rng)
        masks = dropout.masks(training, number, len(x)) if dropout else None
        arguments = training, state, optimizer, x, targets, rate, masks, sums, cores
        found, wanted = step(*arguments), defined_step(*arguments)
        pairs = [("logits", found.logits, wanted.logits)]
        for index, one in enumerate(training.parameters):
            pairs.append((one, found.state.masters[index], wanted.state.masters[index]))
            pairs.append((f"gradient of {one}", found.gradients[index], wanted.gradients[index]))
            slots = wanted.state.slots[index]
            pairs += [(f"{one}, {slot}", found.state.slots[index][slot], slots[slot]) for slot in slots]
        stages = training.stages
        names = {stage.output: stage.output for stage in stages[:-1]}
        names |= {one.name: f"gradient of {stages[one.stage].output}" for one in reverse_graph(training).gradients}
        for name, mine in names.items():
            if mine in found.tensors:  # a gradient that is a copy of another has no tensor of its own
                pairs.append((name, found.tensors[mine], wanted.tensors[name]))
        differ += [f"step {number + 1}: {name}" for name, mine, theirs in pairs if not _same(mine, theirs)]
        state = wanted.state
    return differ

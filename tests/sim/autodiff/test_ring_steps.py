"""Tests of the graph of a training step on a ring: divided updates, and updates of whole parameters on every core."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.golden.ring import held_by
from amaranth_tpu.sim.golden.steps import run_step, segments_of, whole_of_segments
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graph_steps import dense_network, inputs_of, kept_of, numbers_of
from step_networks import transformer


def _divided_step(step, inputs, kept, cores, shards):
    """Returns {parameter: (its value after a step, its gradient)} of a step whose weights are divided among the cores. `kept` has
    whole tensors, by the names that they have if nothing is divided."""
    shared, own = {}, [{} for _ in range(cores)]
    for name, master in step.masters.items():
        tensors = {master: kept[name]}
        tensors |= {tensor: kept[tensor.replace(", own", "")] for tensor in step.slots[name].values()}
        if not step.is_shared(name):
            shared |= tensors
            continue
        for tensor, values in tensors.items():
            parts = segments_of(values, cores, step.tensors[tensor].channels)
            for rank, core in enumerate(own):
                core[tensor] = parts[held_by(rank, cores)]
    tensors, own = run_step(step, inputs | shared, None, own, shards)
    found = {}
    for name, master in step.masters.items():
        names, channels = (step.state[master], step.gradients[name]), step.tensors[name].channels
        if step.is_shared(name):
            found[name] = [whole_of_segments([one[tensor] for one in own], channels) for tensor in names]
        else:
            found[name] = [(tensors | own[0])[tensor] for tensor in names]
    return found


@pytest.mark.parametrize("cores, optimizer", [(2, Sgd(0.9, 0.01)), (3, Adam())])
@pytest.mark.parametrize("kind", ["dense", "transformer"])
def test_divided_and_whole_updates_have_equal_bits(rng, kind, cores, optimizer):
    """A divided update equals the update of whole parameters on every core, and the gradients are equal. Biases and gains are
    not divided, even if the weight decay applies to a gain, as in networks of ONNX files."""
    made = dense_network(rng, (5, 7, 4)) if kind == "dense" else transformer(rng, 3, 5, 1, 4, 1, True)
    gains = [name for name in made.parameters if name.endswith(".gain")]
    made.parameters |= {name: replace(made.parameters[name], decays=True) for name in gains}
    divided, whole = (make_step(made, optimizer, cores, sharded=sharded) for sharded in (True, False))
    shards = [slice(2 * rank, 2 * rank + 2) for rank in range(cores)]
    kept, inputs = kept_of(whole, rng), inputs_of(whole, 2 * cores, rng, binades=24)
    inputs |= numbers_of(whole, optimizer.factors(0.1, 2 * cores, 1))
    tensors, own = run_step(whole, inputs | kept, None, [{}] * cores, shards)
    wanted = tensors | own[0]
    for name, values in _divided_step(divided, inputs, kept, cores, shards).items():
        for found, tensor in zip(values, (whole.state[name], whole.gradients[name])):
            assert np.array_equal(found.view(np.uint32), wanted[tensor].view(np.uint32)), tensor
    assert not any(divided.is_shared(name) for name in gains)
    kinds = {stage.start: stage.ring for stage in whole.stages if stage.ring}
    assert {kinds[f"gradient of {name}"] for name in divided.masters if divided.is_shared(name)} == {"all_reduce_segments"}
    assert {kinds[f"gradient of {name}"] for name in divided.masters if not divided.is_shared(name)} == {"all_reduce"}

"""Tests that the golden model sums the gradients of a batch split over several cores in ring order."""

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.steps import run_step, whole_of_segments
from amaranth_tpu.sim.golden.sums import Sums
from amaranth_tpu.sim.golden.training import step
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Stage
from trainable_graphs import random_trainable_graph
from training_steps import batch_of, chain, started_state


def _sum(products):
    total = np.float32(0)
    for one in products:
        total = np.float32(total + np.float32(one))
    return total


def _round_the_ring(shards, first):
    total = shards[first]
    for distance in range(1, len(shards)):
        total = np.float32(total + shards[(first + distance) % len(shards)])
    return total


def _summed(parts, ring):
    """Returns the sum of the cores' float32 arrays (rows, outputs) by a stage with this ring operation."""
    step, (rows, outputs), cores = Graph(), parts[0].shape, len(parts)
    step.add_tensor("part", (1, rows, outputs), samples=False, wide=True)
    channels = outputs if ring == "all_reduce" else -(-outputs // cores)
    step.add_stage(Stage("sum", (), (1, rows), "part", ring=ring), channels, samples=False, wide=True)
    step.state["sum"] = "sum"
    shared, own = run_step(step, {}, None, [{"part": part[None, None]} for part in parts], [slice(None)] * cores)
    whole = shared["sum"] if ring == "all_reduce" else whole_of_segments([one["sum"] for one in own], outputs)
    return whole.reshape(rows, outputs)


@pytest.mark.smoke
@pytest.mark.parametrize("cores", [1, 2, 3, 5, 8])
def test_gradients_of_a_dense_layer(rng, cores):
    """Each gradient of a dense layer on 1 to 8 cores equals the sum of its products, computed one by one in this test."""
    inputs, outputs, each = 3, int(rng.integers(2, 20)), 2
    training = with_parameters(chain(rng, (inputs, outputs)))
    x, targets = batch_of(training, cores * each, rng)
    result = step(training, started_state(training, Sgd(), rng), Sgd(), x, targets, 0.1, cores=cores)
    d = result.tensors[f"gradient of {training.output}"].reshape(len(x), outputs).astype(np.float32)
    read, segment = x.astype(np.float32), -(-outputs // cores)
    weights, bias = (array.reshape(-1, outputs) for array in result.gradients)
    parts = [range(core * each, (core + 1) * each) for core in range(cores)]
    for o in range(outputs):
        assert bias[0, o] == _round_the_ring([_sum(d[s, o] for s in part) for part in parts], 0)
        for i in range(inputs):
            shards = [_sum(read[s, i] * d[s, o] for s in part) for part in parts]
            assert weights[i, o] == _round_the_ring(shards, o // segment), (i, o)


def test_shards_equal_steps_on_smaller_batches(rng):
    """For networks with convolutions, pooling and residual sums, each core's gradients equal a step on its samples alone, and are
    summed in ring order."""
    training, cores = with_parameters(random_trainable_graph(rng, tables=0.3)), int(rng.integers(2, 5))
    state, (x, targets) = started_state(training, Sgd(), rng), batch_of(training, 3 * cores, rng)
    found = step(training, state, Sgd(), x, targets, 0.1, cores=cores)
    alone = [step(training, state, Sgd(), x[core : core + 3], targets[core : core + 3], 0.1) for core in range(0, 3 * cores, 3)]
    assert np.array_equal(found.logits, np.concatenate([one.logits for one in alone]))
    for number, one in enumerate(training.parameters.values()):
        gradients = [result.gradients[number] for result in alone]
        for o in range(one.initial.shape[-1]):
            first = 0 if not one.decays else o // -(-one.initial.shape[-1] // cores)
            wanted = _round_the_ring([gradient[..., o] for gradient in gradients], first)
            assert np.array_equal(found.gradients[number][..., o], wanted)


def test_order_of_sums_changes_bits(rng):
    """Sums that start at another core have different bits, so these tests can detect a wrong order."""
    shards = [rng.normal(size=(50, 8)).astype(np.float32) for _ in range(4)]
    weights, bias = _summed(shards, "reduce_scatter"), _summed(shards, "all_reduce")
    assert np.array_equal(weights[:, :2], bias[:, :2]) and not np.array_equal(weights[:, 2:], bias[:, 2:])
    for o in range(8):
        column = [shard[:, o] for shard in shards]
        assert np.array_equal(weights[:, o], _round_the_ring(column, o // 2)) and np.array_equal(
            bias[:, o], _round_the_ring(column, 0)
        )


@pytest.mark.parametrize("optimizer", [Sgd(0.9, 0.01), Adam()], ids=["sgd", "adam"])
def test_rate_and_masks_do_not_depend_on_cores(rng, optimizer):
    """The learning rate and the dropout masks do not depend on the number of cores: logits are equal, and parameters are close
    after an update."""
    training, dropout = with_parameters(chain(rng, (9, 7, 5))), Dropout(0.5, 3)
    state, (x, targets) = started_state(training, optimizer, rng), batch_of(training, 12, rng)
    masks = dropout.masks(training, 0, 12)
    one, three = (step(training, state, optimizer, x, targets, 0.1, masks, cores=cores) for cores in (1, 3))
    assert np.array_equal(one.logits, three.logits)
    for a, b in zip(one.state.masters, three.state.masters):
        assert np.allclose(a, b, rtol=1e-2, atol=2e-3)


def test_compiled_sums_have_the_same_bits(rng):
    training = with_parameters(random_trainable_graph(rng))
    state, (x, targets) = started_state(training, Sgd(), rng), batch_of(training, 12, rng)
    results = [step(training, state, Sgd(), x, targets, 0.1, sums=sums, cores=4) for sums in (Sums(), fastest_sums(2))]
    for one, two in zip(*(result.state.masters for result in results)):
        assert np.array_equal(one.view(np.uint32), two.view(np.uint32))


def test_compiled_additions(rng):
    """Compiled additions of random bit patterns, including subnormals, infinities and NaNs, match numpy."""
    one, two = (rng.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(invalid="ignore"):
        one[::3] = -two[::3]
        one[1::3] *= np.float32(2.0**-100)
    found, wanted = (sums.added(one, two).view(np.uint32) for sums in (fastest_sums(2), Sums()))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "cores, match", [(3, "batch of 8 samples can't be cut into 3 equal shards"), (9, "1 to 8"), (0, "1 to 8")]
)
def test_refusals(rng, cores, match):
    training = with_parameters(chain(rng, (3, 2)))
    with pytest.raises(ValueError, match=f"^[^\n]*{match}[^\n]*$"):
        step(training, started_state(training, Sgd(), rng), Sgd(), *batch_of(training, 8, rng), 0.1, cores=cores)

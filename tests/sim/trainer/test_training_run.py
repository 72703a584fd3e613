"""Tests of training runs, covering every step against the golden model, epochs, early stopping, and resuming with the same
bits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.data.checkpoints import CheckpointError
from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.golden.training import cross_entropy, one_hot, step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.trainer.core_comparison import CoreSteps, StepComparison, differing_bits
from amaranth_tpu.sim.trainer.errors import TrainingError
from amaranth_tpu.sim.trainer.golden_training import MOST_GROWTH
from amaranth_tpu.sim.trainer.loop import TrainingRun
from amaranth_tpu.sim.trainer.order import epoch_order
from amaranth_tpu.sim.trainer.resuming import checkpoint_in, restore, save
from amaranth_tpu.sim.trainer.samples import LabelledSamples
from amaranth_tpu.sim.trainer.schedules import parse_schedule
from training_runs import CLASSES, FIXED, clusters, dense_network, new_training


def bits(state):
    return [array.tobytes() for array in (*state.masters, *(slots[name] for slots in state.slots for name in sorted(slots)))]


def figures(position):
    return [replace(one, seconds=0) for one in position.history]


def same(one, two):
    first, second = one.position, two.position
    return (
        bits(first.state) == bits(second.state)
        and (first.epoch, first.number, first.state.steps) == (second.epoch, second.number, second.state.steps)
        and figures(first) == figures(second)
        and (one.losses == two.losses).all()
        and (one.right == two.right).all()
    )


@pytest.mark.parametrize("optimizer, dropout", [(Sgd(momentum=0.8, weight_decay=0.01), 0.0), (Adam(), 0.4)])
def test_every_step_is_the_golden_one(rng, seed, optimizer, dropout):
    """Each step of a training run equals a loop in this test, with the same order of samples, rates and masks, and without the
    incomplete last batch."""
    training = new_training(rng, optimizer=optimizer, dropout=Dropout(dropout, 4), seed=seed % 100, learning_rate=0.03)
    state, samples = training.position.state, training.samples
    TrainingRun(training=training)()
    losses = []
    for epoch in range(3):
        order = epoch_order(seed % 100, epoch, 50)
        for number in range(6):  # the 7th has 2 samples
            chosen = order[8 * number : 8 * number + 8]
            targets = one_hot(samples.labels[chosen], CLASSES)
            masks = Dropout(dropout, 4).masks(training.network, 6 * epoch + number, 8)
            share = (6 * epoch + number) / 18
            factor = 1 if share < 0.4 else 0.5 if share < 0.6 else 0.2 if share < 0.8 else 0.1
            result = step(training.network, state, optimizer, samples.rows[chosen], targets, 0.03 * factor, masks)
            state = result.state
            losses.append(cross_entropy(result.logits, targets))
    assert bits(state) == bits(training.position.state) and training.done
    assert training.losses.tolist() == losses
    assert [one.loss for one in training.position.history] == pytest.approx(np.reshape(losses, (3, 6)).mean(axis=1))


def test_it_learns():
    training = new_training(np.random.default_rng(FIXED), count=400, validation=100, epochs=5)
    before = training.score(training.measured)
    TrainingRun(training=training)()
    after = training.score(training.measured)
    assert after.loss < before.loss / 2 and after.accuracy > 0.9
    history = training.position.history
    assert history[-1].measured_loss == after.loss and history[-1].accuracy == after.accuracy
    assert history[-1].loss < history[0].loss and history[-1].training_accuracy > 0.9
    logits = run_network(training.learnt, training.measured.rows)
    assert float((logits.argmax(1) == training.measured.labels).mean()) == after.accuracy


@pytest.mark.parametrize("optimizer", [Sgd(), Adam()])
def test_resuming_after_any_step(rng, tmp_path, optimizer):
    """A run that resumes from a checkpoint after any step has the bits and figures of an uninterrupted one."""
    data = int(rng.integers(1 << 30))

    def fresh():
        return new_training(
            np.random.default_rng(data), validation=20, optimizer=optimizer, dropout=Dropout(0.25, 1), patience=2, count=30
        )

    whole = fresh()
    TrainingRun(training=whole)()
    interrupted = fresh()
    for number in range(whole.step_number):
        folder = checkpoint_in(tmp_path / str(number))
        save(interrupted, folder)
        other = fresh()
        restore(other, folder)
        assert same(other, interrupted)
        TrainingRun(training=other)()
        assert same(other, whole) and bits_of_graph(other.learnt) == bits_of_graph(whole.learnt)
        interrupted.step(interrupted.next_batch())


def bits_of_graph(graph):
    return [graph.constants[name].tobytes() for stage in graph.stages for name in (stage.terms[0].weights, stage.start)]


def test_early_stopping(rng, monkeypatch):
    """Training stops after two epochs without improvement, and returns the best epoch's parameters."""
    training = new_training(rng, validation=20, epochs=9, patience=2)
    wanted, states = iter([0.5, 0.3, 0.4, 0.3, 0.2]), []

    def results(graph, samples):
        states.append(bits_of_graph(graph))
        return original(graph, samples)

    def score(results, labels, *more):
        found = scored(results, labels, *more)
        return replace(found, loss=next(wanted)) if len(labels) == 20 else found

    original, scored = training.results, training.objective.score
    monkeypatch.setattr(training, "results", results)
    monkeypatch.setattr(training.objective, "score", score)
    TrainingRun(training=training)()
    assert training.position.epoch == 4 and training.position.best.epoch == 2 and training.done
    assert bits_of_graph(training.learnt) == states[1] != states[3]


@pytest.mark.parametrize("before", [None, 2])
def test_without_patience_the_last_epoch_counts(rng, tmp_path, before):
    """Without patience the last epoch's parameters are returned, even if the run resumes from a checkpoint of a run with
    patience."""
    data, folder = int(rng.integers(1 << 30)), checkpoint_in(tmp_path)
    first = new_training(np.random.default_rng(data), validation=20, patience=before)
    for _ in range(first.steps + 1):
        first.step(first.next_batch())
    assert (first.position.best is None) == (before is None)
    save(first, folder)
    training = new_training(np.random.default_rng(data), validation=20)
    restore(training, folder)
    TrainingRun(training=training)()
    assert training.position.best is None
    assert training.learnt.constants[training.learnt.stages[0].start].tobytes() == training.position.state.masters[1].tobytes()


def test_a_rate_that_is_too_high(rng, tmp_path):
    """If the loss becomes infinite or NaN, training ends with a one-line error and keeps the earlier checkpoint."""
    training, folder = new_training(rng, epochs=50), checkpoint_in(tmp_path)
    save(training, folder)
    before = folder.path.read_bytes()
    training.plan = replace(training.plan, learning_rate=1e30)
    said = r"the loss is .* in epoch 1, step . of 6, at learning rate 1e\+30; give a lower"
    with pytest.raises(TrainingError, match=said) as caught:
        TrainingRun(training=training, checkpoints=folder)()
    assert "\n" not in str(caught.value) and folder.path.read_bytes() == before


@pytest.mark.parametrize("validation", [0, 20])
@pytest.mark.parametrize("batch", [8, 50])
def test_finite_loss_far_above_the_first_ends_training(rng, batch, validation):
    """A finite loss far above the first loss ends training with an error, within an epoch, at its end, or after the only step."""
    training = new_training(rng, epochs=2, batch_size=batch, learning_rate=1e12, optimizer=Sgd(), validation=validation)

    def train():
        TrainingRun(training=training)()
        training.score(training.samples)

    with pytest.raises(TrainingError, match=r"the loss is \d.*e\+\d+, the first step's was \d.*; give a lower learning rate"):
        train()
    assert training.most_loss == MOST_GROWTH * max(training.losses[0], np.log(CLASSES))


def test_low_first_loss_is_not_a_limit(rng):
    """If the first loss is nearly 0, a later loss far above it is not an error, since the limit is at least that of random
    guessing."""
    training = new_training(rng)
    training.step(training.next_batch())
    training.losses[0] = 1e-9
    TrainingRun(training=training)()
    assert training.done


def test_overflow_in_the_last_step_is_an_error(rng):
    """A last step that makes a parameter infinite is an error. The losses do not show it, since each precedes its step."""
    training = new_training(rng, epochs=1)
    for _ in range(training.steps - 1):
        training.step(training.next_batch())
    training.position.state.slots[0]["momentum"][...] = 1e38
    training.plan = replace(training.plan, learning_rate=1e3)
    with pytest.raises(TrainingError, match="a parameter is no longer finite after 6 steps; give a lower learning rate"):
        training.step(training.next_batch())


def test_parameters_that_are_not_finite_are_not_written(rng, tmp_path):
    training, folder = new_training(rng), checkpoint_in(tmp_path)
    training.position.state.slots[0]["momentum"][0] = np.inf
    with pytest.raises(TrainingError, match="no longer finite"):
        save(training, folder)
    assert not folder.exists()


def test_too_few_samples(rng):
    with pytest.raises(DataError, match="50 training samples do not fill a batch of 51"):
        new_training(rng, batch_size=51)


def test_labels_outside_of_the_classes(rng):
    rows, labels = clusters(rng, 9)
    for bad in (-1, CLASSES):
        labels[3] = bad
        with pytest.raises(DataError, match=f"label {bad} of sample 3 .* 0 to 3"):
            LabelledSamples.checked(rows, labels, CLASSES)


def test_checkpoint_of_another_run_is_refused(rng, tmp_path):
    """A checkpoint is refused if a setting that determines the results differs, and accepted if another setting differs."""
    data = int(rng.integers(1 << 30))

    def fresh(**changes):
        return new_training(np.random.default_rng(data), **{"epochs": 3, **changes})

    training, folder = fresh(validation=10), checkpoint_in(tmp_path)
    training.step(training.next_batch())
    save(training, folder)
    other = dense_network(np.random.default_rng(6))
    first = other.stages[0]
    padded = replace(first, terms=(replace(first.terms[0], padding=(0, 1)),))
    wider = replace(other, stages=(padded, *other.stages[1:]))
    for changes, said in (
        ({"network": wider}, "another network"),
        ({"count": 49}, "is of other samples; give the same ones"),
        ({"optimizer": Adam()}, "optimizer"),
        ({"optimizer": Sgd(momentum=0.5)}, "optimizer"),
        ({"learning_rate": 0.1}, "rate 0.05, not 0.1"),
        ({"batch_size": 4}, "batch 8, not 4"),
        ({"seed": 2}, "seed 1, not 2"),
        ({"dropout": Dropout(0.5)}, "dropout"),
        ({"schedule": parse_schedule("constant")}, "schedule"),
        ({"epochs": 4}, "fifths over 3 epochs, not fifths over 4"),
    ):
        with pytest.raises(CheckpointError, match=said):
            restore(fresh(**{"validation": 10, **changes}), folder)
    unmeasured = fresh(validation=10)
    unmeasured.measured = None
    with pytest.raises(CheckpointError, match="measured its epochs with other samples; give the same ones to test with"):
        restore(unmeasured, folder)
    # Initial weights do not matter.
    restore(fresh(network=dense_network(np.random.default_rng(6)), validation=10), folder)


def test_resuming_with_more_epochs(rng, tmp_path):
    """With a schedule that does not depend on the number of epochs, a checkpoint of 2 epochs resumes to 4 with the same bits.
    Resuming to fewer is refused."""
    data, constant = int(rng.integers(1 << 30)), parse_schedule("constant")
    folder, runs = checkpoint_in(tmp_path), {}
    for epochs in (2, 4):
        runs[epochs] = new_training(np.random.default_rng(data), epochs=epochs, schedule=constant)
        TrainingRun(training=runs[epochs], checkpoints=folder if epochs == 2 else None)()
    longer = new_training(np.random.default_rng(data), epochs=4, schedule=constant)
    restore(longer, folder)
    TrainingRun(training=longer)()
    assert same(longer, runs[4])
    shorter = new_training(np.random.default_rng(data), epochs=1, schedule=constant)
    with pytest.raises(CheckpointError, match="give more epochs"):
        restore(shorter, folder)


def test_invalid_values_with_a_valid_digest(rng, tmp_path):
    """A hand-made checkpoint with invalid values but a valid digest is refused."""
    training, folder = new_training(rng), checkpoint_in(tmp_path)
    training.step(training.next_batch())
    save(training, folder)
    whole = folder._parts()
    facts, progress = (json.loads(whole[0][name]) for name in ("facts", "progress"))
    for name, value in (("epoch", -1), ("number", 2), ("number", "1"), ("history", 3), ("steps", "x")):
        folder.write(facts, progress | {name: value}, whole[1])
        with pytest.raises(CheckpointError, match="damaged"):
            restore(training, folder)
        folder.write(facts, {other: progress[other] for other in progress if other != name}, whole[1])
        with pytest.raises(CheckpointError, match="was written by another version of amaranth-tpu"):
            restore(training, folder)
    for name, value in (("history", [{"epoch": 1}]), ("best", [1, 2])):  # without entries or tensors of this version
        folder.write(facts, progress | {name: value}, whole[1])
        with pytest.raises(CheckpointError, match="another version"):
            restore(training, folder)


def test_a_checkpoint_names_how_norms_are_computed(rng, tmp_path):
    """Steps with NORMALIZE do not resume from steps with products, and the other way round. A file without the fact, of an
    earlier version, has products."""
    training, folder = new_training(rng), checkpoint_in(tmp_path)
    training.step(training.next_batch())
    for normalize in (True, False):
        training.network.normalize = normalize
        save(training, folder)
        restore(training, folder)
        training.network.normalize = not normalize
        with pytest.raises(CheckpointError, match=f"was made with normalize {int(normalize)}, not {int(not normalize)}; give"):
            restore(training, folder)
    described, tensors = folder._parts()
    facts, progress = (json.loads(described[name]) for name in ("facts", "progress"))
    folder.write({name: facts[name] for name in facts if name != "normalize"}, progress, tensors)
    with pytest.raises(CheckpointError, match="was made with normalize 0, not 1"):
        restore(training, folder)
    training.network.normalize = False
    restore(training, folder)


def test_ctrl_c_keeps_the_last_step(rng, tmp_path):
    """After Ctrl-C between two steps, the checkpoint has the state of the last completed step."""
    data = int(rng.integers(1 << 30))
    training, folder, done = new_training(np.random.default_rng(data)), checkpoint_in(tmp_path), []

    def on_step(batch):
        done.append(batch)
        if len(done) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TrainingRun(training=training, checkpoints=folder, on_step=on_step)()
    other = new_training(np.random.default_rng(data))
    restore(other, folder)
    assert other.step_number == 8 and same(other, training)


# ---- comparison with the core


def core(network, optimizer, flip=lambda number, state, logits: None, **rest):
    """Returns a fake core that computes the golden steps and applies `flip` after each run, and the list of its runs' lengths."""
    runs = []

    def run(state, batches, progress):
        logits = []
        for batch in batches:
            result = step(network, state, optimizer, batch.x, batch.targets, batch.rate, batch.masks)
            state = result.state
            logits.append(result.logits)
        runs.append(len(batches))
        flip(len(runs), state, logits)
        return CoreSteps([state], logits, **rest)

    return run, runs


@pytest.mark.parametrize("most, wanted", [(None, [10, 8]), (13, [10, 3]), (1, [1]), (18, [10, 8]), (40, [10, 8])])
def test_comparison_of_the_first_steps(rng, most, wanted):
    training = new_training(rng)
    counters = [{"cycles": 100, "busy": 60} | dict.fromkeys((f"stall_{name}" for name in STALLS), 1)]
    run, runs = core(training.network, training.plan.optimizer, counters=counters, protocol_errors=0)
    comparison = StepComparison(training.network, run, most)
    TrainingRun(training=training, comparison=comparison)()
    figures = comparison.figures(useful_macs=640, cells=16)
    steps = sum(wanted)
    assert runs == wanted and figures["rtl_steps"] == steps and figures["mismatched_bits"] == figures["protocol_errors"] == 0
    assert comparison.failure is None and training.done
    values = 10 * 8 + 8 + 8 * 4 + 4
    assert figures["compared_values"] == steps * 8 * CLASSES + len(runs) * 2 * values
    assert figures["cycles_per_step"] == 100 and figures["utilisation"] == 640 / 1600
    assert figures["busy"] == 60 * len(runs) and all(count == len(runs) for count in figures["stalls"].values())


@pytest.mark.parametrize("what", ["master", "momentum", "logits"])
def test_difference_ends_training(rng, what):
    """If a bit of a parameter, momentum or logit differs, training ends and reports where."""

    def flip(number, state, logits):
        if number == 2:
            array = {"master": state.masters[2], "momentum": state.slots[2]["momentum"], "logits": logits[1]}[what]
            array.reshape(-1).view(np.uint8)[5] ^= 16

    training = new_training(rng, epochs=9)
    run, runs = core(training.network, training.plan.optimizer, flip)
    comparison = StepComparison(training.network, run, None)
    loop = TrainingRun(training=training, comparison=comparison)
    loop()
    assert comparison.mismatched_bits == 1 and training.step_number == comparison.steps == 20 and not training.done
    place = "the logits of step 12" if what == "logits" else f"{'value' if what == 'master' else what} of output.weights"
    assert loop.failure == f"1 bits differ from the golden model after 20 steps on the core, the first mismatch is in {place}"
    assert comparison.figures(1, 1)["cycles_per_step"] is None


@pytest.mark.parametrize(
    "rest, said",
    [
        ({"fault": {"cause": "ILLEGAL", "pc": 64, "batch": 3}}, "in step 4 with fault ILLEGAL at pc 0x40"),
        ({"protocol_errors": 2}, "2 violations"),
    ],
)
def test_a_core_that_fails(rng, rest, said):
    training = new_training(rng)
    run, _ = core(training.network, training.plan.optimizer, **rest)
    loop = TrainingRun(training=training, comparison=StepComparison(training.network, run, 5))
    loop()
    assert said in loop.failure


def test_differing_bits():
    one = np.array([1.0, 2.0], np.float32)
    assert differing_bits(one, one.copy()) == 0 and differing_bits(one, -one) == 2
    assert differing_bits(one, np.zeros(3, np.float32)) == 96 and differing_bits(np.float32([0.0]), np.float32([-0.0])) == 1


def test_two_trainings_do_not_share_a_folder(rng, tmp_path):
    """While a training holds the folder of its checkpoints, another one is refused and writes nothing."""
    first, other = (TrainingRun(training=new_training(rng), checkpoints=checkpoint_in(tmp_path)) for _ in range(2))
    with first.checkpoints.alone():
        with pytest.raises(CheckpointError, match=f"^{tmp_path}.* another process trains into this folder; wait for it"):
            other()
        assert not [*tmp_path.iterdir()]
    other()
    assert other.training.done and first.checkpoints.exists()

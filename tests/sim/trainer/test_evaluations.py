"""Tests of training by steps: evaluations in the midst of an epoch, the best parameters, and checkpoints of each evaluation."""

import numpy as np
import pytest

from amaranth_tpu.sim.data.checkpoints import CheckpointError
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.trainer.loop import TrainingRun
from amaranth_tpu.sim.trainer.resuming import checkpoint_in, restore
from amaranth_tpu.sim.trainer.samples import windows_of_text
from amaranth_tpu.sim.trainer.schedules import parse_schedule
from training_runs import CLASSES, new_training


def _training(data, **plan):
    plan = {"schedule": parse_schedule("constant"), "validation": 20, "epochs": 9} | plan
    return new_training(np.random.default_rng(data), **plan)


@pytest.mark.parametrize("every, wanted", [(4, [4, 8, 12, 15]), (5, [5, 10, 15]), (None, [6, 12, 15])])
def test_steps_and_evaluations(rng, every, wanted):
    """15 steps of 6 an epoch have the losses of a run by epochs, and are evaluated after `every` steps and at the end."""
    data = int(rng.integers(1 << 30))
    training, whole = _training(data, steps=15, evaluate_every=every), _training(data, epochs=3)
    TrainingRun(training=training)()
    TrainingRun(training=whole)()
    history = training.position.history
    assert [one.steps for one in history] == wanted and training.step_number == 15 and training.done
    assert [one.epoch for one in history] == [-(-one // 6) for one in wanted]
    assert training.losses.tolist() == whole.losses[:15].tolist()
    edges = [0, *wanted]
    assert [one.loss for one in history] == pytest.approx([whole.losses[a:b].mean() for a, b in zip(edges, edges[1:])])


def test_resuming_between_evaluations(rng, tmp_path):
    """A run that resumes from the checkpoint of any evaluation ends as an uninterrupted run. Other evaluations are refused."""
    data, plan = int(rng.integers(1 << 30)), {"steps": 14, "evaluate_every": 4, "keep_best": True}
    whole, folder = _training(data, **plan), checkpoint_in(tmp_path)
    TrainingRun(training=whole, checkpoints=folder, keep_all=True)()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-12.safetensors",
        "checkpoint-14.safetensors",
        "checkpoint-4.safetensors",
        "checkpoint-8.safetensors",
        "checkpoint.safetensors",
    ]
    for number in (4, 8, 12, 14):
        other = _training(data, **plan)
        restore(other, folder.numbered(number))
        assert other.step_number == number
        TrainingRun(training=other)()
        assert [one.loss for one in other.position.history] == [one.loss for one in whole.position.history]
        assert all(map(np.array_equal, other.position.state.masters, whole.position.state.masters))
    for changed in ({"evaluate_every": 5}, {"steps": 15}):
        with pytest.raises(CheckpointError, match="evaluation"):
            restore(_training(data, **plan | changed), folder.numbered(4))


def test_best_parameters(rng):
    """With `keep_best`, the trained network is the one at the evaluation with the lowest loss."""
    training = _training(
        int(rng.integers(1 << 30)),
        steps=12,
        evaluate_every=2,
        keep_best=True,
        learning_rate=1.5,
        schedule=parse_schedule("constant"),
    )
    states = []
    while not training.done:
        training.step(training.next_batch())
        states.append(training.position.state)
    losses = [one.measured_loss for one in training.position.history]
    number = training.position.best.epoch
    assert training.position.best.loss == min(losses) == losses[number - 1]
    assert all(map(np.array_equal, training.position.best.masters, states[2 * number - 1].masters))
    logits = run_network(training.learnt, training.measured.rows)
    assert training.score(training.measured).loss == pytest.approx(min(losses)) and logits.shape == (20, CLASSES)


def test_windows_of_a_text():
    windows = windows_of_text(np.arange(11), 3)
    assert windows.rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert windows.labels.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert len(windows_of_text(np.arange(3), 3)) == 0 and len(windows_of_text(np.arange(4), 3)) == 1

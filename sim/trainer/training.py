"""A training run: where it is, what step comes next, and what an epoch gave.

The position after a step depends on the position before it, the network, the samples and the plan, and on nothing else: a run
that goes on from a checkpoint has the bits of one that never stopped.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from ..data.digits import DataError
from ..golden.dropout import Dropout
from ..golden.gradients import Sums
from ..golden.training import TrainingState, bound_graph, forward, one_hot, step
from .errors import TrainingError
from .order import epoch_order
from .samples import Score
from .schedules import RateSchedule

_MEASURED = 500  # samples of a forward pass

#: A loss this many times as large as the first step's, or as a guess's where that is larger, has diverged.
MOST_GROWTH = 10_000

__all__ = ["Plan", "Batch", "Best", "EpochFigures", "Position", "Training", "MOST_GROWTH", "check_finite"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides a run's bits, beside the network and the samples.

    Parameters
    ----------
    optimizer : sim.ir.optimizers.Sgd or Adam
    rate : float
        Of the mean gradient over a batch; times the schedule's factor.
    schedule : RateSchedule
    batch, epochs : int
        Samples of a step, epochs in all. The last part of an epoch that does not fill a batch is left out.
    seed : int
        Of the order of samples.
    dropout : Dropout
    patience : int or None
        Epochs without a lower loss of the validation samples after which training ends; the best epoch's parameters are then the
        result.
    cores : int
        That share each batch, as :func:`sim.golden.training.step` has it.
    """

    optimizer: object
    rate: float
    schedule: RateSchedule
    batch: int
    epochs: int
    seed: int = 1
    dropout: Dropout = Dropout(0)
    patience: int | None = None
    cores: int = 1


@dataclass(frozen=True, eq=False)
class Batch:
    """What goes into a step.

    Parameters
    ----------
    epoch, number : int
        The epoch, and the step's number within it, both from 0.
    x : bfloat16 (batch, values of a sample)
    labels : int64 (batch,)
    targets : bfloat16 (batch, classes)
    rate : float
        Of the mean gradient.
    masks : dict of int to bfloat16 array
        Of dropout, by stage.
    """

    epoch: int
    number: int
    x: np.ndarray
    labels: np.ndarray
    targets: np.ndarray
    rate: float
    masks: dict


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """
    Parameters
    ----------
    epoch : int
        From 1.
    rate : float
        At the last step.
    loss, training_accuracy : float
        Means over the epoch's steps, each before its update.
    measured_loss, accuracy : float or None
        Of the held-out samples after the epoch, or of the test samples if none are; None if there are no other samples.
    seconds : float
        Since the epoch began, or since the run went on within it.
    """

    epoch: int
    rate: float
    loss: float
    training_accuracy: float
    measured_loss: float | None
    accuracy: float | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Best:
    """The epoch with the lowest loss of the held-out samples: its number from 1, this loss, and the masters after it."""

    epoch: int
    loss: float
    masters: list


@dataclass(frozen=True, eq=False)
class Position:
    """Where a run is, between two steps.

    Parameters
    ----------
    state : sim.golden.training.TrainingState
    epoch, number : int
        The next step: epoch, and number within it, both from 0.
    history : tuple of EpochFigures
    best : Best or None
        With `patience`, of the epochs so far.
    """

    state: TrainingState
    epoch: int = 0
    number: int = 0
    history: tuple[EpochFigures, ...] = ()
    best: Best | None = None


class Training:
    """A run of a network on samples.

    Parameters
    ----------
    network : sim.ir.training.TrainingGraph
    plan : Plan
    samples : LabelledSamples
        To train on.
    measured : LabelledSamples or None
        What the accuracy after each epoch is of.
    state : sim.golden.training.TrainingState
        At the start.
    sums : sim.golden.gradients.Sums or None
        As :func:`sim.golden.training.step` takes them; the same bits with any.

    Raises
    ------
    sim.data.digits.DataError
        If there are fewer samples than a batch takes.
    """

    def __init__(self, network, plan, samples, measured, state, sums=None):
        if len(samples) < plan.batch:
            raise DataError(f"{len(samples)} samples to train on do not fill a batch of {plan.batch}; give a smaller batch")
        self.network, self.plan, self.samples, self.measured = network, plan, samples, measured
        self.sums = sums or Sums()
        self.steps = len(samples) // plan.batch
        self.position = Position(state)
        # Of each step: mean loss, and right answers. Those of steps that are still to come are zeros.
        self.losses = np.zeros((plan.epochs, self.steps))
        self.right = np.zeros((plan.epochs, self.steps), np.int64)
        self._order, self._started = None, time.perf_counter()

    @property
    def done(self):
        """Whether the last epoch is over, or no more is to be expected of another."""
        position, patience = self.position, self.plan.patience
        waited = position.epoch - position.best.epoch if position.best else 0
        return position.epoch >= self.plan.epochs or patience is not None and waited >= patience

    @property
    def step_number(self):
        """Steps done since the start of the run."""
        return self.position.epoch * self.steps + self.position.number

    def rate(self, epoch, number):
        """The rate of a step."""
        return self.plan.rate * self.plan.schedule.at(epoch, number, self.steps, self.plan.epochs)

    def next_batch(self):
        """What the next step takes."""
        epoch, number = self.position.epoch, self.position.number
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.plan.seed, epoch, len(self.samples))
        chosen = self.samples.chosen(self._order[1][number * self.plan.batch : (number + 1) * self.plan.batch])
        targets = one_hot(chosen.labels, self.network.graph.output_size)
        masks = self.plan.dropout.masks(self.network, self.step_number, self.plan.batch)
        return Batch(epoch, number, chosen.rows, chosen.labels, targets, self.rate(epoch, number), masks)

    def step(self, batch):
        """Does the step of :meth:`next_batch`, and what belongs to the end of an epoch if it was the last one of it. Returns the
        step's :class:`Score` and logits, float32 (batch, classes), by the parameters before it.

        Raises
        ------
        TrainingError
            If the loss is not finite or above :attr:`most_loss`, or after an epoch's last step a parameter is not finite.
        """
        position, at = self.position, (batch.epoch, batch.number)
        plan, given = self.plan, (batch.x, batch.targets, batch.rate, batch.masks)
        result = step(self.network, position.state, plan.optimizer, *given, self.sums, plan.cores)
        score = Score.of(result.logits, batch.labels)
        self._check_loss(score.loss, batch)
        self.losses[at], self.right[at] = score.loss, score.right
        position = replace(position, state=result.state, number=batch.number + 1)
        self.position = self._next_epoch(position, batch) if position.number == self.steps else position
        return score, result.logits

    def _next_epoch(self, position, batch):
        """The position behind an epoch's last step."""
        check_finite(position.state, (batch.epoch + 1) * self.steps)
        score = self._score(bound_graph(self.network, position.state), self.measured) if self.measured else None
        if score:
            self._check_loss(score.loss, batch)
        now, number, before = time.perf_counter(), batch.epoch + 1, self.score_so_far(batch.epoch, self.steps)
        figures = EpochFigures(
            epoch=number,
            rate=batch.rate,
            loss=before.loss,
            training_accuracy=before.accuracy,
            measured_loss=score and score.loss,
            accuracy=score and score.accuracy,
            seconds=now - self._started,
        )
        self._started = now
        best = position.best
        if self.plan.patience and (best is None or score.loss < best.loss):
            best = Best(number, score.loss, position.state.masters)
        return replace(position, epoch=number, number=0, history=(*position.history, figures), best=best)

    def score_so_far(self, epoch, steps):
        """The :class:`Score` of the first steps of an epoch, each before its update."""
        losses, right = self.losses[epoch, :steps], self.right[epoch, :steps]
        return Score(float(losses.mean()), int(right.sum()), steps * self.plan.batch)

    def score(self, samples):
        """The :class:`Score` of what has been learnt, by the golden model. Raises TrainingError if training has diverged."""
        score = self._score(self.learnt, samples)
        self._check_loss(score.loss)
        return score

    def _score(self, graph, samples):
        logits = [
            forward(graph, samples.rows[first : first + _MEASURED], {}, self.sums)[-1]
            for first in range(0, len(samples), _MEASURED)
        ]
        return Score.of(graph.arrange_output(np.concatenate(logits)), samples.labels)

    @property
    def learnt(self):
        """The network with the present parameters, or with `patience` with those of the best epoch: a graph for inference."""
        state, best = self.position.state, self.position.best
        return bound_graph(self.network, replace(state, masters=best.masters) if best else state)

    @property
    def most_loss(self):
        """The largest loss that training goes on with: `MOST_GROWTH` times the first step's, or the logarithm of the classes,
        the loss of a guess, if that is larger."""
        return MOST_GROWTH * max(float(self.losses[0, 0]), np.log(self.network.graph.output_size))

    def _check_loss(self, loss, batch=None):
        """Raises TrainingError if training has diverged, in the step of a batch or at the end."""
        is_first = batch is not None and self.step_number == 0 and not self.losses[0, 0]
        if np.isfinite(loss) and (is_first or loss <= self.most_loss):
            return
        where = (
            f"after {self.step_number} steps"
            if batch is None
            else f"in epoch {batch.epoch + 1}, step {batch.number + 1} of {self.steps}, at rate {batch.rate:g}"
        )
        what = "no longer finite" if not np.isfinite(loss) else f"{loss:.3g}, the first step's was {self.losses[0, 0]:.3g},"
        raise TrainingError(f"the loss is {what} {where}; give a lower learning rate")


def check_finite(state, steps):
    """Raises TrainingError if a parameter, or what an optimizer keeps of it, is not finite after so many steps."""
    arrays = [*state.masters, *(array for slots in state.slots for array in slots.values())]
    if any(not np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise TrainingError(f"a parameter is no longer finite after {steps} steps; give a lower learning rate")

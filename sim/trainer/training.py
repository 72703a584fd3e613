"""The state of a training run, its steps, and the statistics of each epoch.

The state after a step depends only on the state before it, the network, the samples and the plan. A run that resumes from a
checkpoint is therefore bit-identical to an uninterrupted run.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from ..data.digits import DataError
from ..golden.dropout import Dropout
from ..golden.sums import Sums
from ..golden.training import TrainingState, bound_graph, forward, one_hot, step
from .errors import TrainingError
from .order import epoch_order
from .samples import Score
from .schedules import RateSchedule

_MEASURED = 500  # samples per forward pass of an evaluation

#: Training counts as diverged if the loss exceeds by this factor the loss of the first step, or of a random guess if that is
#: larger.
MOST_GROWTH = 10_000

__all__ = ["Plan", "Batch", "Best", "EpochFigures", "Position", "Training", "MOST_GROWTH", "check_finite"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The hyperparameters of a training run. Together with network and samples they determine its bits.

    Parameters
    ----------
    optimizer : sim.ir.optimizers.Sgd or Adam
    rate : float
        Learning rate for the mean gradient over a batch. The schedule's factor multiplies it.
    schedule : RateSchedule
    batch, epochs : int
        Batch size, and number of epochs. The last batch of an epoch is dropped if it is incomplete.
    seed : int
        Seed of the sample order.
    dropout : Dropout
    patience : int or None
        Early stopping: training stops after this number of epochs without a lower validation loss. The result then has the
        parameters of the best epoch.
    cores : int
        Number of cores that split each batch; see :func:`sim.golden.training.step`.
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
    """The inputs of one training step.

    Parameters
    ----------
    epoch, number : int
        Number of the epoch, and of the step within the epoch, both counted from 0.
    x : bfloat16 (batch, values of a sample)
    labels : int64 (batch,)
    targets : bfloat16 (batch, classes)
    rate : float
        Learning rate for the mean gradient over the batch.
    masks : dict of int to bfloat16 array
        Dropout masks by stage number.
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
    """The statistics of one epoch.

    Parameters
    ----------
    epoch : int
        Number of the epoch, counted from 1.
    rate : float
        Learning rate at the last step of the epoch.
    loss, training_accuracy : float
        Means over the steps of the epoch. Each step is evaluated before its update.
    measured_loss, accuracy : float or None
        Loss and accuracy after the epoch, on the validation set, or else on the test set. None if there is neither.
    seconds : float
        Seconds since the epoch began, or since the run resumed within the epoch.
    """

    epoch: int
    rate: float
    loss: float
    training_accuracy: float
    measured_loss: float | None
    accuracy: float | None
    seconds: float

    def __str__(self):
        measured = "" if self.accuracy is None else f"; validation loss {self.measured_loss:.4f}, accuracy {self.accuracy:.2%}"
        return f"epoch {self.epoch}: loss {self.loss:.4f}, accuracy {self.training_accuracy:.2%}{measured}; {self.seconds:.1f} s"


@dataclass(frozen=True, eq=False)
class Best:
    """The epoch with the lowest validation loss: its number (from 1), the loss, and the master weights at its end."""

    epoch: int
    loss: float
    masters: list


@dataclass(frozen=True, eq=False)
class Position:
    """The state of a training run between two steps.

    Parameters
    ----------
    state : sim.golden.training.TrainingState
    epoch, number : int
        Epoch of the next step, and number of that step within the epoch, both counted from 0.
    history : tuple of EpochFigures
    best : Best or None
        Best epoch so far, if the plan has `patience`.
    """

    state: TrainingState
    epoch: int = 0
    number: int = 0
    history: tuple[EpochFigures, ...] = ()
    best: Best | None = None


class Training:
    """The training of a network on a set of samples, step by step.

    Parameters
    ----------
    network : sim.ir.training.TrainingGraph
    plan : Plan
    samples : LabelledSamples
        Training set.
    measured : LabelledSamples or None
        Validation or test set, on which the network is evaluated after each epoch.
    state : sim.golden.training.TrainingState
        State before the first step.
    sums : sim.golden.sums.Sums or None
        Implementation of the long sums in :func:`sim.golden.training.step`. All implementations give the same bits.

    Raises
    ------
    sim.data.digits.DataError
        If the training set is smaller than a batch.
    """

    def __init__(self, network, plan, samples, measured, state, sums=None):
        if len(samples) < plan.batch:
            raise DataError(f"{len(samples)} training samples do not fill a batch of {plan.batch}; give a smaller batch")
        self.network, self.plan, self.samples, self.measured = network, plan, samples, measured
        self.sums = sums or Sums()
        self.steps = len(samples) // plan.batch
        self.position = Position(state)
        # Mean loss and number of correctly classified samples for each step; 0 for future steps.
        self.losses = np.zeros((plan.epochs, self.steps))
        self.right = np.zeros((plan.epochs, self.steps), np.int64)
        self._order, self._started = None, time.perf_counter()

    @property
    def done(self):
        """Returns True after the last epoch, or after early stopping."""
        position, patience = self.position, self.plan.patience
        waited = position.epoch - position.best.epoch if position.best else 0
        return position.epoch >= self.plan.epochs or patience is not None and waited >= patience

    @property
    def step_number(self):
        """Returns the number of steps done since the start of training."""
        return self.position.epoch * self.steps + self.position.number

    def rate(self, epoch, number):
        """Returns the learning rate at step `number` of an epoch."""
        return self.plan.rate * self.plan.schedule.at(epoch, number, self.steps, self.plan.epochs)

    def next_batch(self):
        """Returns the :class:`Batch` for the next step."""
        epoch, number = self.position.epoch, self.position.number
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.plan.seed, epoch, len(self.samples))
        chosen = self.samples.chosen(self._order[1][number * self.plan.batch : (number + 1) * self.plan.batch])
        targets = one_hot(chosen.labels, self.network.graph.output_size)
        masks = self.plan.dropout.masks(self.network, self.step_number, self.plan.batch)
        return Batch(epoch, number, chosen.rows, chosen.labels, targets, self.rate(epoch, number), masks)

    def step(self, batch):
        """Computes a step on a batch from :meth:`next_batch`. After the last step of an epoch, it also evaluates the network.

        Returns the :class:`Score` of the batch and its logits, float32 (batch, classes), both with the parameters before the
        update.

        Raises
        ------
        TrainingError
            If the loss is not finite or exceeds :attr:`most_loss`, or if a parameter is not finite after the last step of an
            epoch.
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
        """Evaluates the network after the last step of an epoch. Returns the :class:`.Position` at the start of the next epoch,
        with the statistics of this epoch."""
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
        """Returns the :class:`Score` over the first `steps` steps of an epoch. Each step is evaluated before its update."""
        losses, right = self.losses[epoch, :steps], self.right[epoch, :steps]
        return Score(float(losses.mean()), int(right.sum()), steps * self.plan.batch)

    def score(self, samples):
        """Computes the :class:`Score` of the trained network with the golden model. Raises TrainingError if training has
        diverged."""
        score = self._score(self.learnt, samples)
        self._check_loss(score.loss)
        return score

    def _score(self, graph, samples):
        logits = [
            forward(graph, samples.rows[first : first + _MEASURED], self.sums)[graph.output]
            for first in range(0, len(samples), _MEASURED)
        ]
        return Score.of(graph.arrange_output(np.concatenate(logits)), samples.labels)

    @property
    def learnt(self):
        """Returns the trained network for inference, as a :class:`sim.ir.graph.Graph`. It has the current parameters, or the
        parameters of the best epoch if the plan has `patience`."""
        state, best = self.position.state, self.position.best
        return bound_graph(self.network, replace(state, masters=best.masters) if best else state)

    @property
    def most_loss(self):
        """Returns the loss above which training counts as diverged.

        It is `MOST_GROWTH` times the larger of two losses: the loss of the first step, and log(classes), the loss of a random
        guess.
        """
        return MOST_GROWTH * max(float(self.losses[0, 0]), np.log(self.network.graph.output_size))

    def _check_loss(self, loss, batch=None):
        """Raises TrainingError if the loss shows that training has diverged. `batch` is the batch of the current step; None after
        the last step."""
        is_first = batch is not None and self.step_number == 0 and not self.losses[0, 0]
        if np.isfinite(loss) and (is_first or loss <= self.most_loss):
            return
        where = (
            f"after {self.step_number} steps"
            if batch is None
            else f"in epoch {batch.epoch + 1}, step {batch.number + 1} of {self.steps}, at learning rate {batch.rate:g}"
        )
        what = "no longer finite" if not np.isfinite(loss) else f"{loss:.3g}, the first step's was {self.losses[0, 0]:.3g},"
        raise TrainingError(f"the loss is {what} {where}; give a lower learning rate")


def check_finite(state, steps):
    """Raises TrainingError if a parameter or its optimizer state is not finite. `steps` is the number of steps done, for the
    message."""
    arrays = [*state.masters, *(array for slots in state.slots for array in slots.values())]
    if any(not np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise TrainingError(f"a parameter is no longer finite after {steps} steps; give a lower learning rate")

"""The state of a training run, its steps, and the statistics of each epoch.

The state after a step depends only on the state before it, the network, the samples and the plan. A run that resumes from a
checkpoint is therefore bit-identical to an uninterrupted run.
"""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from ..data.digits import DataError
from ..golden.network import core_input, run_graph
from ..golden.sums import Sums
from ..golden.training import TrainingState, bound_graph, step
from ..ir.losses import losses_of
from ..ir.row_norms import with_row_norms
from .errors import TrainingError
from .order import epoch_order
from .samples import Objective, Score
from .stream import Stream

_MEASURED = 500  # samples per forward pass of an evaluation

#: Training counts as diverged if the loss exceeds by this factor the loss of the first step, or of a random guess if that is
#: larger.
MOST_GROWTH = 10_000

__all__ = ["Batch", "Best", "EpochFigures", "Position", "Training", "MOST_GROWTH", "check_finite"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs of one training step."""

    #: epoch, number: Number of the epoch, and of the step within the epoch, both counted from 0.
    epoch: int
    number: int
    x: np.ndarray
    labels: np.ndarray  # Array. As in :class:`sim.trainer.samples.LabelledSamples`.
    targets: np.ndarray
    counted: np.ndarray | None  # Int64 or bfloat16 (batch, positions), or None. Factor of the loss of each position.
    rate: float  # learning rate for the mean gradient over the batch
    masks: dict  # Dict of int to bfloat16 array. Dropout masks by stage number.


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """The statistics of one epoch, or of the steps between two evaluations."""

    epoch: int  # number of the epoch of the last step, counted from 1
    steps: int  # number of steps since the start of training
    rate: float  # learning rate at the last step
    #: loss, training_accuracy: Means over the steps since the evaluation before. Each step is evaluated before its update. The
    #: accuracy is None for losses without one.
    loss: float
    training_accuracy: float | None
    #: measured_loss, accuracy: Loss and accuracy after the steps, on the validation set, or else on the test set. None if there
    #: is neither.
    measured_loss: float | None
    accuracy: float | None
    seconds: float  # seconds since the evaluation before, or since the run resumed
    metrics: dict = field(default_factory=dict)  # {name: number or list} of further metrics on the validation set

    def __str__(self):
        text = f"epoch {self.epoch}, step {self.steps:,}: {_figures(self.loss, self.training_accuracy)}"
        measured = "" if self.measured_loss is None else f"; validation {_figures(self.measured_loss, self.accuracy)}"
        measured += "".join(f", {name} {one:.4g}" for name, one in self.metrics.items() if isinstance(one, float))
        return f"{text}{measured}; {self.seconds:.1f} s"


def _figures(loss, accuracy):
    return f"loss {loss:.4f}" + ("" if accuracy is None else f", accuracy {accuracy:.2%}")


@dataclass(frozen=True, eq=False)
class Best:
    """The evaluation with the lowest validation loss: its number (from 1), the loss, and the master weights. Without
    `evaluate_every`, its number is the number of an epoch."""

    epoch: int
    loss: float
    masters: list


@dataclass(frozen=True, eq=False)
class Position:
    """The state of a training run between two steps."""

    state: TrainingState
    #: epoch, number: Epoch of the next step, and number of that step within the epoch, both counted from 0.
    epoch: int = 0
    number: int = 0
    history: tuple[EpochFigures, ...] = ()
    best: Best | None = None  # best evaluation so far, if the plan has `patience` or `keep_best`


class Training:
    """The training of a network on a set of samples, step by step. Raises DataError if the training set is smaller than a
    batch.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    plan : Plan
    samples : LabelledSamples or Stream
        Training set.
    measured : LabelledSamples or None
        Validation or test set, on which the network is evaluated after each epoch.
    state : sim.golden.training.TrainingState
        State before the first step.
    sums : sim.golden.sums.Sums or None
        Implementation of the long sums in :func:`sim.golden.training.step`. All implementations give the same bits.
    metrics : callable or None
        `metrics(results, labels)` returns {name: number or list} for results (count, output size) on `measured`.
    """

    def __init__(self, network, plan, samples, measured, state, sums=None, metrics=None):
        if len(samples) < plan.batch_size:
            raise DataError(f"{len(samples)} training samples do not fill a batch of {plan.batch_size}; give a smaller batch")
        self.network, self.plan, self.samples, self.measured = network, plan, samples, measured
        self._has_accuracy = any(one.is_of_logits for one in losses_of(network.loss))
        self.sums, self.objective, self._metrics = sums or Sums(), Objective(network), metrics
        self.steps = len(samples) // plan.batch_size
        self.epochs = plan.epochs if plan.steps is None else -(-plan.steps // self.steps)
        self.total = plan.epochs * self.steps if plan.steps is None else plan.steps
        self.position = Position(state)
        # Mean loss, number of correctly classified positions, and of counted positions for each step; 0 for future steps.
        self.losses = np.zeros(self.total)
        self.right, self.counts = np.zeros(self.total, np.int64), np.zeros(self.total, np.int64)
        self._order, self._started = None, time.perf_counter()

    @property
    def done(self):
        """Returns True after the last step, or after early stopping."""
        position, patience = self.position, self.plan.patience
        waited = len(position.history) - position.best.epoch if position.best else 0
        return self.step_number >= self.total or patience is not None and waited >= patience

    @property
    def step_number(self):
        """Returns the number of steps done since the start of training."""
        return self.position.epoch * self.steps + self.position.number

    def evaluations(self, done):
        """Returns the number of evaluations in the first `done` steps."""
        return done // (self.plan.evaluate_every or self.steps) + (done == self.total and not self._is_due(done))

    def _is_due(self, done):
        return done % (self.plan.evaluate_every or self.steps) == 0

    def rate(self, done):
        """Returns the learning rate of the step after `done` steps."""
        return self.plan.learning_rate * self.plan.schedule.at(done, self.steps, self.total)

    def next_batch(self):
        """Returns the :class:`Batch` for the next step."""
        epoch, number = self.position.epoch, self.position.number
        chosen = self.samples.batch(epoch, number) if isinstance(self.samples, Stream) else self._chosen(epoch, number)
        targets, counted = self.objective.targets(chosen.labels, chosen.shares, chosen.factors)
        masks = self.plan.dropout.masks(self.network, self.step_number, self.plan.batch_size)
        x = core_input(self.network, np.asarray(chosen.rows))
        return Batch(epoch, number, x, chosen.labels, targets, counted, self.rate(self.step_number), masks)

    def _chosen(self, epoch, number):
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, epoch_order(self.plan.seed, epoch, len(self.samples))
        return self.samples.chosen(self._order[1][number * self.plan.batch_size : (number + 1) * self.plan.batch_size])

    def step(self, batch):
        """Computes a step on a batch from :meth:`next_batch`. After an epoch, or `evaluate_every` steps, and after the last
        step, it also evaluates the network. Raises TrainingError if the loss is not finite or exceeds :attr:`most_loss`, or if
        a parameter is not finite at an evaluation.

        Returns the :class:`Score` of the batch and its logits, float32 (batch, output size), both with the parameters before the
        update.
        """
        position, plan, done = self.position, self.plan, self.step_number
        given = (batch.x, batch.targets, batch.rate, batch.masks)
        result = step(self.network, position.state, plan.optimizer, *given, self.sums, plan.cores, batch.counted)
        score = self.objective.score(result.logits, batch.labels)
        score = score if self.samples.is_plain else replace(score, loss=result.loss)
        self.check_loss(score.loss, batch)
        self.losses[done], self.right[done], self.counts[done] = score.loss, score.right or 0, score.count
        epoch, number = divmod(done + 1, self.steps)
        position = replace(position, state=result.state, epoch=epoch, number=number)
        due = self._is_due(done + 1) or done + 1 == self.total
        self.position = self._evaluated(position, batch, done + 1) if due else position
        return score, result.logits

    def _evaluated(self, position, batch, done):
        """Evaluates the network after `done` steps. Returns the position with the statistics of the last steps."""
        check_finite(position.state, done)
        score, metrics = None, {}
        if self.measured:
            results = self.results(bound_graph(self.network, position.state), self.measured)
            score = self.objective.score(results, self.measured.labels, self.measured.shares, self.measured.factors)
            self.check_loss(score.loss, batch)
            metrics = self._metrics(results, self.measured.labels) if self._metrics is not None else {}
        now, before = time.perf_counter(), self.score_so_far(done)
        figures = EpochFigures(
            epoch=batch.epoch + 1,
            steps=done,
            rate=batch.rate,
            loss=before.loss,
            training_accuracy=before.accuracy,
            measured_loss=score and score.loss,
            accuracy=score and score.accuracy,
            seconds=now - self._started,
            metrics=metrics,
        )
        self._started = now
        history, best = (*position.history, figures), position.best
        if (self.plan.patience or self.plan.keep_best) and (best is None or score.loss < best.loss):
            best = Best(len(history), score.loss, position.state.masters)
        return replace(position, history=history, best=best)

    def score_so_far(self, done):
        """Returns the :class:`Score` over the steps since the last evaluation. `done` steps have been done. Each step is
        evaluated before its update."""
        history = self.position.history
        part = slice(history[-1].steps if history else 0, done)
        right = int(self.right[part].sum()) if self._has_accuracy else None
        return Score(float(self.losses[part].mean()), right, int(self.counts[part].sum()))

    def score(self, samples):
        """Computes the :class:`Score` of the trained network with the golden model. Raises TrainingError if training has
        diverged."""
        score = self.objective.score(self.results(self.learnt, samples), samples.labels)
        self.check_loss(score.loss)
        return score

    def results(self, graph, samples):
        """Returns the results of a network for samples, float32 (count, output size), with the golden model."""
        parts = (np.asarray(samples.rows[first : first + _MEASURED]) for first in range(0, len(samples), _MEASURED))
        graph = with_row_norms(graph, self.network)
        return np.concatenate([run_graph(graph, part, sums=self.sums) for part in parts])

    @property
    def learnt(self):
        """Returns the trained network for inference, as a :class:`sim.ir.graph.Graph`. It has the current parameters, or the
        parameters of the best evaluation if the plan has `patience` or `keep_best`."""
        state, best = self.position.state, self.position.best
        return bound_graph(self.network, replace(state, masters=best.masters) if best else state)

    @property
    def most_loss(self):
        """Returns the loss above which training counts as diverged.

        It is `MOST_GROWTH` times the larger of two losses: the loss of the first step, and log(classes), the loss of a random
        guess.
        """
        return MOST_GROWTH * max(float(self.losses[0]), np.log(self.objective.positions.classes))

    def check_loss(self, loss, batch=None):
        """Raises TrainingError if the loss shows that training has diverged. `batch` is the batch of the current step; None after
        the last step."""
        is_first = batch is not None and self.step_number == 0 and not self.losses[0]
        if np.isfinite(loss) and (is_first or loss <= self.most_loss):
            return
        where = (
            f"after {self.step_number} steps"
            if batch is None
            else f"in epoch {batch.epoch + 1}, step {batch.number + 1} of {self.steps}, at learning rate {batch.rate:g}"
        )
        what = "no longer finite" if not np.isfinite(loss) else f"{loss:.3g}, the first step's was {self.losses[0]:.3g},"
        raise TrainingError(f"the loss is {what} {where}; give a lower learning rate")


def check_finite(state, steps):
    """Raises TrainingError if a parameter or its optimizer state is not finite. `steps` is the number of steps done, for the
    message."""
    arrays = [*state.masters, *(array for slots in state.slots for array in slots.values())]
    if any(not np.isfinite(array.astype(np.float32)).all() for array in arrays):
        raise TrainingError(f"a parameter is no longer finite after {steps} steps; give a lower learning rate")

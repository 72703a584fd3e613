"""The training loop, with checkpoints, log and callbacks."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field

from ..data.checkpoints import Checkpoint
from .core_comparison import StepComparison
from .event_log import EventLog
from .golden_training import Training
from .resuming import save

__all__ = ["TrainingRun"]

_SECONDS = 30  # interval of checkpoints within an epoch, in seconds


@dataclass(kw_only=True)
class TrainingRun:
    """A training run with its checkpoints, comparison with a core, log and callbacks. If a step fails, files written before are
    kept.
    """

    training: Training
    #: Checkpoint to write after each evaluation, every 30 s, and when the run is interrupted.
    checkpoints: Checkpoint | None = None
    keep_all: bool = False  # a copy of the checkpoint stays for each evaluation
    #: Comparison with a core. It receives every step since the start or resume, until it is complete.
    comparison: StepComparison | None = None
    #: Log that receives loss, accuracy and learning rate of each step, and the statistics of each epoch.
    log: EventLog | None = None
    on_step: object = None  # Callable or None. Called with the :class:`.Batch` of each step. If it returns True, training ends.
    #: Callable or None. Called with the :class:`.EpochFigures` of each evaluation. If it returns True, training ends.
    on_epoch: object = None
    before_epoch: object = None  # callable or None. Called without arguments before `on_epoch`.
    stopped: bool = field(default=False, init=False)

    @property
    def failure(self):
        """Returns a message of one line if a check of the steps on the core has failed. Otherwise returns None."""
        return self.comparison and self.comparison.failure

    def __call__(self):
        """Trains until the last epoch, until a callback returns True, or until :attr:`failure` is set. Raises TrainingError if
        training has diverged, and DataError if a file cannot be written. The message is one line."""
        with self.checkpoints.alone() if self.checkpoints else nullcontext():
            self._train()

    def _train(self):
        written = time.monotonic()
        try:
            while not (self.training.done or self.stopped or self.failure):
                ended = self._step()
                if self.checkpoints and (ended or time.monotonic() - written > _SECONDS):
                    if self.log:
                        self.log.flush()  # a run that resumes from this checkpoint does not log these steps again
                    save(self.training, self.checkpoints)
                    if ended and self.keep_all:
                        save(self.training, self.checkpoints.numbered(self.training.step_number))
                    written = time.monotonic()
            if self.comparison:
                self.comparison.finish()  # the pending steps do not fill a simulation
        except KeyboardInterrupt:
            if self.checkpoints and self.training.step_number:
                save(self.training, self.checkpoints)
            raise
        finally:
            if self.log:
                self.log.close()

    def _step(self):
        """Computes one training step. Returns True if the network was evaluated after it."""
        training = self.training
        batch, before = training.next_batch(), training.position.state
        evaluated = len(training.position.history)
        score, logits = training.step(batch)
        if self.comparison and not self.comparison.complete:
            self.comparison.add(before, batch, training.position.state, logits)
        number = training.step_number
        if self.log:
            self.log.add(number, **_given(loss=score.loss, accuracy=score.accuracy, rate=batch.rate))
        if self.on_step and self.on_step(batch) is True:
            self.stopped = True
        ended = len(training.position.history) > evaluated
        if ended:
            figures = training.position.history[-1]
            if self.log:
                self.log.add(number, **_given(measured_loss=figures.measured_loss, measured_accuracy=figures.accuracy))
                self.log.flush()
            if self.before_epoch:
                self.before_epoch()
            if self.on_epoch and self.on_epoch(figures) is True:
                self.stopped = True
        return ended


def _given(**values):
    return {name: value for name, value in values.items() if value is not None}

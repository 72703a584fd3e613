"""Training samples that are read batch by batch, in the order of a data set."""

import hashlib
import json

import numpy as np

from ..data.errors import DataError
from .samples import LabelledSamples

__all__ = ["Stream"]


class Stream:
    """The samples of an iterable of batches. A step takes the next samples, also from parts of several batches. At the end of an
    epoch, the rest of a pass is dropped.

    Parameters
    ----------
    data : iterable
        If each `iter(data)` starts anew, an epoch is a pass. Otherwise, epochs are parts of one pass. A data set with the methods
        `state_dict` and `load_state_dict` gives checkpoints its position. Without them, a run that resumes reads all batches
        before its position again.
    convert : callable
        `convert(batch)` returns :class:`.LabelledSamples`.
    size : int
        Samples of a step.
    steps : int
        Steps of an epoch.
    is_counted, is_plain : bool
        As in :class:`.LabelledSamples`.
    """

    def __init__(self, data, convert, size, steps, is_counted, is_plain):
        self._data, self._convert, self._size, self.steps = data, convert, size, steps
        self.is_counted, self.is_plain = is_counted, is_plain
        self._pass, self._next, self._epoch = None, (0, 0), None
        self._left, self._offset, self._before = ([], 0, None)  # rest of the last batch, and its place there
        self.digest = "a stream"  # a fact that a resumed run must share; the batches are compared when they are read again
        self._read = ""  # digest of all batches so far

    def __len__(self):
        """Returns the number of samples of an epoch."""
        return self.steps * self._size

    def batch(self, epoch, number):
        """Returns the samples of a step. Steps must be in order. Raises DataError if an epoch has too few samples."""
        if (epoch, number) != self._next:
            raise ValueError(f"step {number} of epoch {epoch} follows {self._next}")
        if epoch != self._epoch:
            self._start(epoch)
        while sum(map(len, self._left)) < self._size:
            self._add(epoch, number)
        joined = _joined(self._left)
        taken, rest = (joined.chosen(part) for part in (slice(self._size), slice(self._size, None)))
        self._left = [rest] if len(rest) else []
        self._next = divmod(epoch * self.steps + number + 1, self.steps)
        return taken

    @property
    def _starts_anew(self):
        return iter(self._data) is not self._data if hasattr(self._data, "__next__") else True

    def _start(self, epoch):
        self._epoch = epoch
        if self._pass is None or self._starts_anew:
            self._finish()
            self._pass, self._left = iter(self._data), []

    def _finish(self):
        """Reads the rest of a pass, so that the data set comes to the state after it."""
        if self._pass is not None and self._starts_anew:
            for _ in self._pass:
                pass
            self._pass = iter(())

    def _add(self, epoch, number):
        self._before = self._state()
        try:
            batch = next(self._pass)
        except StopIteration:
            raise DataError(
                f"x: ended in step {number + 1} of {self.steps} of epoch {epoch + 1}; give `steps_per_epoch`, or a data set "
                "whose passes are of one length"
            ) from None
        samples = self._convert(batch)
        self._length = len(samples)
        self._read = hashlib.sha256(f"{self._read}{samples.digest}".encode()).hexdigest()[:32]
        self._left.append(samples)

    def _state(self):
        """Returns the data set's own position as text, or None."""
        if not (hasattr(self._data, "state_dict") and hasattr(self._data, "load_state_dict")):
            return None
        try:
            return json.dumps(self._data.state_dict())
        except TypeError:  # it holds other objects
            return None

    def position(self):
        """Returns the position after the steps so far, as JSON values."""
        left = sum(map(len, self._left))
        if self._next[1] == 0 and self._epoch is not None and self._starts_anew:
            self._finish()
            left = 0
        return {
            "read": self._read,
            "state": self._before if left else self._state(),
            "skipped": self._length - left if left else 0,
        }

    def restore(self, epoch, number, position):
        """Goes to the position before a step. Raises DataError if other batches came before the checkpoint."""
        if position["state"] is None:
            for done in range(epoch * self.steps + number):
                self.batch(*divmod(done, self.steps))
            if self._read != position["read"]:
                raise DataError(
                    "x: gives other batches than before the checkpoint; give its order a seed, or name another folder"
                )
            return
        self._data.load_state_dict(json.loads(position["state"]))
        self._next, self._read = (epoch, number), position["read"]
        if number:
            self._epoch, self._pass = epoch, iter(self._data)
            if position["skipped"]:
                before = self._read
                self._add(epoch, number)
                self._left, self._read = [self._left[0].chosen(slice(position["skipped"], None))], before


def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    arrays = ([getattr(one, name) for one in parts] for name in ("rows", "labels", "shares", "factors"))
    return LabelledSamples(*(None if one[0] is None else np.concatenate(one) for one in arrays))

"""Iterables of batches as samples: data loaders, tf.data, generators. They are read in each epoch, or once."""

import itertools

import numpy as np

from ..data.errors import DataError
from ..trainer.errors import ArgumentError
from .arguments import as_array
from .exports import shapes_of

__all__ = ["Batches", "gathered"]


class Batches:
    """An iterable of batches `(x, y)` or `(x, y, factors)`, which stay where they are until they are read.

    Parameters
    ----------
    data : iterable
        Raises ArgumentError if it is none.
    steps, total : int or None
        Number of steps of an epoch, and of the training. Without the first, an iterable that starts anew is counted in a pass of
        its own.

    Attributes
    ----------
    first : tuple
        The first batch.
    is_whole : bool
        True if the samples can only be trained on once they are in memory: they are a list, or an iterator without a
        number of steps.
    """

    def __init__(self, data, steps=None, total=None, name="x", count=True):
        if isinstance(data, np.ndarray) or hasattr(data, "shape") or not hasattr(data, "__iter__"):
            raise ArgumentError(
                f"`{name}` without `y` must be an iterable of batches (x, y) or (x, y, factors); give labels in `y`"
            )
        is_iterator = hasattr(data, "__next__")
        self._name, self._steps = name, steps or (total if is_iterator else None)
        self.is_whole = isinstance(data, (list, tuple)) or is_iterator and self._steps is None
        reading = iter(data)
        try:
            first = next(reading)
        except StopIteration:
            raise DataError(f"{name}: has no batches; an iterator can be read once only") from None
        self.first, self._count = self.parts(first, 0), None
        if is_iterator:
            self.data = itertools.chain([first], reading)
        else:
            self.data = data
            if self._steps is None and not self.is_whole and count:
                self._count = self.size + sum(_length(batch[0]) for batch in map(self._checked, reading))

    @property
    def size(self):
        """Returns the number of samples of the first batch."""
        return _length(self.first[0])

    def steps(self, size):
        """Returns the number of steps of an epoch, for steps of `size` samples."""
        if self._steps is None and self._count < size:
            raise DataError(f"{self._count} training samples do not fill a batch of {size}; give a smaller batch")
        return self._steps if self._steps is not None else self._count // size

    def _checked(self, batch):
        return self.parts(batch, None)

    def parts(self, batch, number=None):
        """Returns `(x, y, factors or None)` of a batch, as arrays. Raises DataError."""
        which = f"batch {number}" if number is not None else "a batch"
        first = getattr(self, "first", None)
        if (
            not isinstance(batch, (tuple, list))
            or len(batch) not in (2, 3)
            or first
            and (len(batch) == 3) != (first[2] is not None)
        ):
            raise DataError(f"{self._name}: {which} must be a tuple (x, y), or (x, y, factors) as all others")
        arrays = [_arrays(one) for one in batch]
        lengths = {_length(one) for one in arrays}
        if len(lengths) > 1:
            flat = [array for one in arrays for array in _leaves(one)]
            raise DataError(f"{self._name}: {which} has arrays of shapes {shapes_of(flat)}, not of one number of samples")
        return (*arrays, None)[:3]


def _arrays(value):
    """Returns a tensor as an array, and the tensors in a dict, or in a list for several inputs or outputs, too."""
    if isinstance(value, dict):
        return {name: _arrays(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)) and any(getattr(one, "ndim", 0) for one in value):
        return [_arrays(one) for one in value]
    return np.asarray(as_array(value))


def _leaves(value):
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]


def _length(value):
    lengths = {len(one) if np.ndim(one) else 0 for one in _leaves(_arrays(value))}
    return lengths.pop() if len(lengths) == 1 else -1


def gathered(batches, name="x"):
    """Returns `(x, y, factors or None)` of all batches of an iterable. It is read once. Raises DataError, or ArgumentError if it
    is no iterable of batches. `name` stands for it in messages."""
    batches = batches if isinstance(batches, Batches) else Batches(batches, name=name, count=False)
    parts = [batches.parts(batch, number) for number, batch in enumerate(batches.data)]
    try:
        return tuple(_together([one[place] for one in parts]) for place in range(3))
    except ValueError:
        raise DataError(f"{name}: has batches of samples of different shapes") from None


def _together(parts):
    if isinstance(parts[0], dict):
        return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
    if isinstance(parts[0], list):
        return [np.concatenate(one) for one in zip(*parts)]
    return None if parts[0] is None else np.concatenate(parts)

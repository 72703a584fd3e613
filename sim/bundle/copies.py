"""Addresses of a sample's values in a region of host memory, as nested loops in place of a list."""

from dataclasses import dataclass

import numpy as np

__all__ = ["LOOPS", "Copy", "copies_of", "expand"]

#: Number of nested loops in a copy.
LOOPS = 4


@dataclass(frozen=True)
class Copy:
    """Nested loops that copy values of a sample to elements of a region. With loop counters `l < count`, the value with index
    `value + sum l value_step` is copied to the element with index `place + sum l place_step`.
    """

    value: int
    place: int
    #: count, value_step, place_step: Loop counts, and steps per loop; the outermost loop is first.
    count: tuple[int, ...]
    value_step: tuple[int, ...]
    place_step: tuple[int, ...]


def _fold(items):
    """Merges consecutive items that have the same loops and a constant distance into one item with an additional loop.

    Parameters
    ----------
    items : int array (items, columns)
        Value index, element index, and the columns of the loops found before.

    Returns
    -------
    int array (fewer, columns + 3)
        Items with an additional outer loop: its count and its two steps.
    """
    apart = np.diff(items, axis=0)
    alike = (apart[:, 2:] == 0).all(axis=1)
    changes = np.flatnonzero((apart[1:] != apart[:-1]).any(axis=1)) + 1
    ends = np.append(changes, len(apart))  # end of each sequence of equal distances
    found, first = [], 0
    while first < len(items):
        last = first
        if first < len(apart) and alike[first]:
            last = ends[np.searchsorted(ends, first, side="right")]
        steps = apart[first, :2] if last > first else (0, 0)
        found.append([*items[first], last - first + 1, *steps])
        first = last + 1
    return np.array(found, np.int64)


def copies_of(values, places):
    """Returns a list of :class:`Copy` for pairs of a value index and an element index. The list is short only if the pairs are
    regular."""
    items = np.stack([np.asarray(values, np.int64), np.asarray(places, np.int64)], axis=1)
    for _ in range(LOOPS):
        items = _fold(items)
    copies = []
    for row in items.tolist():
        count, value_step, place_step = (tuple(row[first::3][::-1]) for first in (2, 3, 4))
        copies.append(Copy(row[0], row[1], count, value_step, place_step))
    return copies


def expand(copies):
    """Expands a list of :class:`Copy` to the pairs of indices, as arrays `(values, places)`."""
    values, places = [], []
    for copy in copies:
        rounds = np.indices(copy.count).reshape(LOOPS, -1)
        values.append(copy.value + np.array(copy.value_step) @ rounds)
        places.append(copy.place + np.array(copy.place_step) @ rounds)
    return np.concatenate(values), np.concatenate(places)

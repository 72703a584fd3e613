"""Copies by strides: the places of values in another tensor, as boxes of affine axes.

Values of a tensor are counted in the order (y, x, channel). A value that no copy writes is 0.
"""

from typing import NamedTuple

import numpy as np

__all__ = ["StridedCopy", "places_of", "strided_copies"]

_MOST_RUNS = 1 << 15  # neighbours with one distance, before runs are joined
_MOST_COPIES = 1 << 12


class StridedCopy(NamedTuple):
    """A box of values."""

    source: int  # first value that is read
    result: int  # first value that is written
    #: Tuple of (int, int, int). Number of values, and their distances in the source and in the result, of each axis. The
    #: innermost axis is the last.
    axes: tuple

    def __str__(self):
        sizes = " ".join(f"{count}:{apart}>{to}" for count, apart, to in self.axes)
        return f"{self.source}>{self.result}" + f" {sizes}" * bool(sizes)


def places_of(copies, size):
    """Returns, for each of `size` values of a result, the number of the value of the source; -1 for a value of 0."""
    index = np.full(size, -1)
    for source, result, axes in copies:
        read, written = np.array([source]), np.array([result])
        for count, apart, to in axes:
            steps = np.arange(count)
            read, written = (np.add.outer(one, steps * by).reshape(-1) for one, by in ((read, apart), (written, to)))
        index[written] = read
    return index


def strided_copies(index, most=_MOST_COPIES):
    """Returns the tuple of :class:`StridedCopy` of an index as :func:`places_of` returns it. Returns None if these are
    more than `most`."""
    written = np.flatnonzero(index >= 0)
    pairs, shapes, kinds = np.stack([index[written], written], axis=1), [()], np.zeros(len(written), int)
    while True:
        runs = _runs(pairs, kinds)
        if runs is None:
            return None
        firsts, counts = runs
        if len(firsts) == len(pairs):
            break
        apart = np.where((counts > 1)[:, None], pairs[np.minimum(firsts + 1, len(pairs) - 1)] - pairs[firsts], 0)
        keys, known = [], {}
        for kind, count, steps in zip(kinds[firsts].tolist(), counts.tolist(), apart.tolist()):
            axes = ((count, *steps), *shapes[kind]) if count > 1 else shapes[kind]
            keys.append(known.setdefault(axes, len(known)))
        pairs, shapes, kinds = pairs[firsts], [*known], np.array(keys)
    if len(pairs) > most:
        return None
    return tuple(StridedCopy(read, place, shapes[kind]) for (read, place), kind in zip(pairs.tolist(), kinds.tolist()))


def _runs(pairs, kinds):
    """Divides pairs of places into neighbours of one kind at one distance. Returns `(first of each run, pairs of each run)`, or
    None if there are too many runs."""
    count, apart, same = len(pairs), np.diff(pairs, axis=0), kinds[1:] == kinds[:-1]
    breaks = np.flatnonzero((apart[1:] != apart[:-1]).any(axis=1) | ~same[1:]) + 1
    firsts, first = [], 0
    for end in [*breaks.tolist(), count - 1]:
        while first <= end and first < count and not (first < count - 1 and same[first]):
            firsts.append(first)
            first += 1
        if first < end:
            firsts.append(first)
            first = end + 1
        if len(firsts) > _MOST_RUNS:
            return None
    made = np.array([*firsts, *range(first, count)], int)
    return made, np.diff(made, append=count)

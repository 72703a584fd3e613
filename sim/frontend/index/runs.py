"""Copies of channels, and of runs of positions."""

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap
from .values import limited

__all__ = ["in_runs", "select"]

_MOST_RUNS = 512


def select(source, channels, **geometry):
    """Returns a tap that copies these channels of a node. -1 is the constant 0."""
    have = source.shape[2]
    if np.array_equal(channels, np.arange(have)):
        return Tap(source, np.ones((1, 1, 1, have)), groups=have, exact=True, select=channels, **geometry)
    return Tap(source, _chosen(have, channels)[None, None], exact=True, select=channels, **geometry)


def _chosen(have, channels):
    """Returns a matrix of zeros and ones, (have, channels), that selects channels. If all ones are on one diagonal, the matrix is
    a strided view of a short vector, which saves memory in a Concat of many parts."""
    there = np.flatnonzero(channels >= 0)
    shift = int(channels[there[0]] - there[0]) if there.size else 0
    diagonal = np.arange(max(0, -shift), min(len(channels), have - shift))
    if np.array_equal(there, diagonal) and np.array_equal(channels[there], there + shift):
        line = np.zeros(have + len(channels) - 1)
        line[len(channels) - 1 + shift] = 1
        (step,) = line.strides
        return np.lib.stride_tricks.as_strided(line[len(channels) - 1 :], (have, len(channels)), (step, -step), writeable=False)
    weights = np.zeros((have, len(channels)))
    weights[channels[there], there] = 1
    return weights


def in_runs(step, source, index):
    """Returns a copy by a stage for each run of positions that are neighbours in the node too, such as rows of an image in one
    sequence. Returns None if positions differ in their channels, or if there are too many runs."""
    channels, height, width = index.shape
    there = index[0] >= 0
    if not there.any():
        return None
    depth, first = source.shape[2], index[:, *np.argwhere(there)[0]]
    places = index[0] // depth
    if (first < 0).any() or (index != np.where(there, places * depth + first[:, None, None] % depth, -1)).any():
        return None
    parts = []
    for y in range(height):
        ends = np.flatnonzero(_breaks(places[y], there[y], source.shape[1])) + 1
        for left, right in zip([0, *ends], [*ends, width]):
            row, column = divmod(int(places[y, left]), source.shape[1]) if there[y, left] else (-1, 0)  # above is 0
            one = select(source, first % depth, padding=(-row, -column))
            parts.append(SumRegion((one,), (1, int(right - left)), (y, int(left))))
    if len(parts) > _MOST_RUNS:
        return None
    limited(step, depth, channels)
    return Linear(**step.titles, shape=(height, width, channels), parts=tuple(parts))


def _breaks(places, there, width):
    follows = (np.diff(places) == 1) & (places[1:] % width != 0) & there[1:] & there[:-1]
    return ~(follows | ~there[1:] & ~there[:-1])

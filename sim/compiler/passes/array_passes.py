"""The passes of a stage. A *pass* multiplies by one tile of weights: (term, ky, kx, tile of the source's channels)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Term
from ...ir.tiles import tiles_of

__all__ = ["Weighted", "count_passes", "dense", "passes_of"]


@dataclass(frozen=True, eq=False)
class Weighted:
    """A term with its weights, (kernel height, kernel width, channels of the source / groups, channels of the result)."""

    term: Term
    weights: np.ndarray


def dense(weights, groups):
    """Returns weights (..., channels of the source, channels of the result) of all channels. Between groups they are -0: adding x
    * -0 changes no sum."""
    if groups == 1:
        return weights
    *kernel, inputs, channels = weights.shape
    outputs = channels // groups
    made = np.full((*kernel, inputs * groups, channels), -0.0, bfloat16)
    for group in range(groups):
        own = slice(group * outputs, (group + 1) * outputs)
        made[..., group * inputs : (group + 1) * inputs, own] = weights[..., own]
    return made


def passes_of(terms, n, column):
    """Returns the passes of column tile `column` of a sequence of :class:`Weighted`, in order, as (term, ky, kx, channel tile).
    Passes whose weights are all structural zeros, because of groups or sparse terms, are skipped. If all are, one pass remains:
    the sums must be written."""
    passes, least = [], None
    for index, one in enumerate(terms):
        inputs, channels = one.weights.shape[2:]
        outputs = channels // one.term.groups
        first = column * n // outputs
        last = (min((column + 1) * n, channels) - 1) // outputs
        tiles = range(first * inputs // n, tiles_of((last + 1) * inputs, n))
        least = least or (index, 0, 0, tiles[0])
        there = _tiles_with_weights(one, n)[..., column] if one.term.sparse else None
        passes += [
            (index, ky, kx, tile)
            for ky in range(one.weights.shape[0])
            for kx in range(one.weights.shape[1])
            for tile in tiles
            if there is None or there[ky, kx, tile]
        ]
    return passes or [least]


@lru_cache(maxsize=256)
def _tiles_with_weights(one, n):
    """Returns the weight tiles of a sparse term that have weights: bool (kernel rows, kernel columns, channel tiles of the
    source, column tiles)."""
    there = one.weights.view(np.uint16) != 0x8000
    for axis in (2, 3):
        there = np.logical_or.reduceat(there, range(0, there.shape[axis], n), axis=axis)
    return there


@lru_cache(maxsize=256)
def count_passes(terms, n):
    """Returns the number of passes of all column tiles of a tuple of :class:`Weighted`, for one rectangle of results."""
    return sum(len(passes_of(terms, n, column)) for column in range(tiles_of(terms[0].weights.shape[3], n)))

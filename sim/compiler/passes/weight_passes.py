"""The passes of a stage. A *pass* multiplies by one tile of weights: (term, ky, kx, tile of the source's channels)."""

from functools import lru_cache

import numpy as np

from ...ir.tiles import tiles_of

__all__ = ["count_passes", "passes_of"]


def passes_of(stage, n, column):
    """Returns the passes of column tile `column`, in order, as (term, ky, kx, channel tile). Passes whose weights are all
    structural zeros, because of groups or sparse terms, are skipped. If all are, one pass remains: the sums must be written."""
    passes, least = [], None
    for index, term in enumerate(stage.terms):
        inputs, outputs = term.weights.shape[2], stage.channels // term.groups
        first = column * n // outputs
        last = (min((column + 1) * n, stage.channels) - 1) // outputs
        tiles = range(first * inputs // n, tiles_of((last + 1) * inputs, n))
        least = least or (index, 0, 0, tiles[0])
        there = _tiles_with_weights(term, n)[..., column] if term.sparse else None
        passes += [
            (index, ky, kx, tile)
            for ky in range(term.kernel[0])
            for kx in range(term.kernel[1])
            for tile in tiles
            if there is None or there[ky, kx, tile]
        ]
    return passes or [least]


@lru_cache(maxsize=256)
def _tiles_with_weights(term, n):
    """Returns the weight tiles of a sparse term that have weights: bool (kernel rows, kernel columns, channel tiles of the
    source, column tiles)."""
    there = term.weights.view(np.uint16) != 0x8000
    for axis in (2, 3):
        there = np.logical_or.reduceat(there, range(0, there.shape[axis], n), axis=axis)
    return there


@lru_cache(maxsize=256)
def count_passes(stage, n):
    """Returns the number of passes of all column tiles of a stage, for one rectangle of results."""
    return sum(len(passes_of(stage, n, column)) for column in range(tiles_of(stage.channels, n)))

"""The passes of a stage. A *pass* multiplies by one tile of weights: (term, ky, kx, tile of the source's channels)."""

from functools import lru_cache

import numpy as np

from ...ir.tiles import tiles_of

__all__ = ["count_passes", "loaded_tiles", "passes_of", "tile_steps"]


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


@lru_cache(maxsize=256)
def tile_steps(stage, n):
    """Returns `{index of a term: step}`: each column tile has the same passes as column tile 0, but reads channel tiles that are
    `step` further for each column tile. Returns None if this does not hold for all column tiles, or if a step is negative."""
    if stage.is_uniform or stage.channels <= n:
        return dict.fromkeys(range(len(stage.terms)), 0)
    first, second, *others = (passes_of(stage, n, column) for column in range(tiles_of(stage.channels, n)))
    steps = {index: moved - tile for (index, _, _, tile), (*_, moved) in zip(first, second)}
    for column, passes in enumerate((second, *others), 1):
        if passes != [(index, ky, kx, tile + column * steps.get(index, 0)) for index, ky, kx, tile in first]:
            return None
    return steps if min(steps.values()) >= 0 else None


def loaded_tiles(stage, n, column, count):
    """Returns, for each pass of the column tiles from `column` on, the number of weight tiles that the array must load if the
    passes of these `count` column tiles alternate. It is less than `count` if all tiles of a pass are equal: 1, or 0 if the
    previous pass used the same tile, too. Only fixed terms of one channel per group are compared, such as averages."""
    loads, before = [], None
    for index, ky, kx, _ in passes_of(stage, n, column):
        term, equal = stage.terms[index], None
        if term.fixed and term.groups == term.weights.shape[2] * term.weights.shape[3]:
            weights = term.weights[ky, kx, 0, column * n : (column + count) * n]
            equal = weights[:n].tobytes() if weights.tobytes() == weights[:n].tobytes() * count else None
        loads.append(count if equal is None else int(equal != before))
        before = equal
    return loads

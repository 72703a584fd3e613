"""Code generation for copies by strides, in the jobs of :class:`sim.compiler.codegen.jobs.SumCode`.

A pass copies vectors of the source to rows of the sums, by a tile that chooses lanes, or transposes n vectors of the source.
"""

from itertools import product as combinations
from math import prod

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...ir.strided_copies import strided_copies
from ..tuning import LOAD_COST
from .tile_runs import Tile

__all__ = ["add_copies"]


def add_copies(code, product):
    """Emits the passes of a job for a product of kind `"copied"`. Sums that get no vector start from zeros."""
    assert code.sums.start_rows == "zeros", "copies are added to biases"
    begun = np.full(code.rows * code.columns, code.started)
    _turn(code, product, begun)
    rows, tiles, read, choices = _vectors(code, product, product.copies.entries)
    unit = _unit(code, product)
    for part in _parts(code, tiles, read, unit):
        places = _loaded(code, product.source, tiles[part], read[part], unit)
        for number in np.unique(choices[part]).tolist():
            own = choices[part] == number
            tile = code.emitter.tile(product.weights, 0, number, False)
            _add(code, tile, begun, rows[part][own], places[own])
    rows, nothing = np.flatnonzero(~begun), Tile(Region.MODEL, code.emitter.constants.nothing)
    if rows.size:
        _add(code, nothing, begun, rows, np.full(rows.size, code.emitter.zeros))
    code.started = True


def _turn(code, product, begun):
    """Emits the passes that copy one lane of n vectors of the source to a vector. The vectors are the weights, and the operands
    are rows of the identity."""
    rows, tiles, read, lanes = _vectors(code, product, product.copies.turned)
    for tile, first in dict.fromkeys(zip(tiles.tolist(), read.tolist())):
        own = (tiles == tile) & (read == first)
        weights = Tile(product.source.region, code.emitter.offset(product.source, tile, first))
        _add(code, weights, begun, rows[own], code.emitter.resident("identity") + lanes[own])


def _vectors(code, product, entries):
    """Returns the vectors that a job copies: rows of the sums, tiles of the source, rows of the source, and the last column of
    `entries`."""
    source, period = product.source.geometry.period, code.geometry.period
    own = entries[(entries[:, 1] >= code.column) & (entries[:, 1] < code.column + code.columns)]
    found = [np.zeros((4, 0), int)]
    for sample in range(code.row // period, min(-(-(code.row + code.rows) // period), code.geometry.batch)):
        row = own[:, 0] + sample * period - code.row
        there = (row >= 0) & (row < code.rows)
        some, rows = own[there], (own[there, 1] - code.column) * code.rows + row[there]
        found.append(np.stack([rows, some[:, 3], some[:, 2] + sample * source, some[:, 4]]))
    return np.concatenate(found, axis=1)


def _unit(code, product):
    """Returns the number of rows of the source that are loaded together: those of a sample, if jobs of other column tiles read
    the others and all fit the unified buffer."""
    source = product.source
    whole = product.is_whole_copy and source.tiles * source.geometry.period <= code.emitter.memories.operands.size // 2
    return source.geometry.period if whole else 1


def _parts(code, tiles, read, unit):
    """Divides vectors of the source into parts that fit the unified buffer together. Yields their numbers."""
    most = code.emitter.memories.operands.size // 2
    if not len(tiles):
        return
    if len(np.unique(tiles)) * _size(read, unit) <= most:
        yield np.arange(len(tiles))
        return
    for tile in np.unique(tiles):
        numbers = np.flatnonzero(tiles == tile)
        blocks = np.zeros(len(numbers), int) if _size(read[numbers], unit) <= most else read[numbers] // (most // unit * unit)
        for block in np.unique(blocks):
            yield numbers[blocks == block]


def _blocks(read, unit):
    """Yields the ranges `(first, count)` of rows that are loaded together. A few rows between them are loaded, too."""
    units = np.unique(read // unit)
    ends = np.flatnonzero(np.diff(units) > max(1, LOAD_COST // unit)) + 1
    for some in np.split(units, ends):
        yield int(some[0]) * unit, int(some[-1] - some[0] + 1) * unit


def _size(read, unit):
    return sum(count for _, count in _blocks(read, unit))


def _loaded(code, source, tiles, read, unit):
    """Loads vectors of the source, unless they are on the chip. Returns the row in the unified buffer of each."""
    store, wanted, blocks = code.emitter.memories.operands, np.unique(tiles).tolist(), [*_blocks(read, unit)]
    before = None
    while True:  # a load may replace blocks that were on the chip
        found = [code.loaded(source, wanted, first, count, store) for first, count in blocks]
        if found == before:
            break
        before = found
    places = np.zeros(len(tiles), int)
    for (first, count), starts in zip(blocks, found):
        own = (read >= first) & (read < first + count)
        places[own] = np.array(starts)[np.searchsorted(wanted, tiles[own])] + read[own] - first
    return places


def _add(code, tile, begun, rows, places):
    """Adds vectors at `places` of the unified buffer to `rows` of the sums."""
    index, is_first = np.full(len(begun), -1), True
    for start in (True, False):
        own = begun[rows] != start
        index[:] = -1
        index[rows[own]] = places[own]
        for place, row, axes in strided_copies(index, most=len(index)):
            for shift, at, loops, passes in _loops(axes):
                is_first = _copy(code, tile, is_first, place + shift, row + at, loops, passes, start)
    begun[rows] = True


def _loops(axes):
    """Divides a box of copies into the loops of MATMULs. Yields `(distance of the first place, of the first row, loops over the
    rows, (passes, distances of their places and rows))`."""
    axes, inner = [*axes], []
    while axes and len(inner) < 2 and axes[-1][1] >= 0 and axes[-1][2] == prod(count for count, *_ in inner):
        inner.insert(0, axes.pop())
    loops = [(1, 0)] * (2 - len(inner)) + [(count, apart) for count, apart, _ in inner]
    passes = axes.pop() if axes and axes[-1][1] >= 0 else (1, 0, 0)
    for steps in combinations(*(range(count) for count, *_ in axes)):
        yield (*(sum(step * axis[which] for step, axis in zip(steps, axes)) for which in (1, 2)), loops, passes)


def _copy(code, tile, is_first, place, row, loops, passes, start):
    """Emits a MATMUL for each tile that it brings, and one for passes by the tile in the array. Returns False."""
    count, apart, to = passes
    if is_first:
        code.emitter.bring([tile])
        code.emitter.matmul(code.acc + row, place, loops, start=int(start))
        place, row, count = place + apart, row + to, count - 1
    if count:
        fields = {"tiles1": count, "tiles1_stride": apart, "tiles1_acc_stride": to}
        code.emitter.matmul(code.acc + row, place, loops, start=int(start), keep=1, **fields)
    return False

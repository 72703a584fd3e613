"""Fine tensors: tensors with more pixels than their node has positions, written out with a position for each pixel.

No stage can write every second pixel. First a node spreads the columns: it has a region for each column of the result, or for
each column of the source if all columns of a pixel block are equal. Max pooling over one existing position then repeats the
column. A second node spreads the rows in the same way. With phases (:mod:`sim.frontend.index.phases`), a later convolution
multiplies its weights instead; that is faster for few channels only.
"""

from dataclasses import replace

import numpy as np

from ...fusion.nodes import Linear, SumRegion
from ...ir.stage import Pool
from .phases import phases_of
from .runs import select
from .values import limited

__all__ = ["written_out"]

_MOST_REGIONS = 512  # of one node


def written_out(step, source, index):
    """Returns a new node with the values of an index map (channel, y, x) that has phases. Returns None if the map has no phases,
    or only one, or if there are too many columns or rows."""
    seen = phases_of(source, index)
    if seen is None or seen.factor == (1, 1):
        return None
    (height, width, depth), (rows, columns), channels = source.shape, seen.factor, seen.channels
    channels = channels[:1] if (channels == channels[:1]).all() else channels  # of pixel rows that are equal, one is enough
    blocks, count = len(channels), len(index)
    limited(step, height, width * columns, blocks, count)
    limited(step, depth, blocks, count)
    if columns > 1:
        source = _spread(step, source, [channels[:, column].reshape(-1) for column in range(columns)], axis=1)
        channels = np.arange(blocks * count).reshape(blocks, 1, count)
    if source is None or rows == 1:
        return source
    return _spread(step, source, np.broadcast_to(channels[:, 0], (rows, count)), axis=0)


def _spread(step, source, blocks, axis):
    """Returns a node with several rows (`axis` 0) or columns (1) for each row or column of `source`. `blocks` has the channels of
    each of them."""
    length, factor = source.shape[axis], len(blocks)
    repeats = factor > 1 and all(np.array_equal(block, blocks[0]) for block in blocks)
    regions = [(place, 0) for place in range(length)] if repeats else list(np.ndindex(length, factor))
    if len(regions) > _MOST_REGIONS:
        return None

    def along(number, other):
        return (number, other[1]) if axis == 0 else (other[0], number)

    limited(step, source.shape[2], 1 if repeats else factor, len(blocks[0]))
    size, parts, pool = source.shape[:2], [], None
    taps = [select(source, block) for block in (blocks[:1] if repeats else blocks)]  # their weights are shared
    for place, number in regions:
        one = replace(taps[number], padding=along(-place, (0, 0)))
        parts.append(SumRegion((one,), along(1, size), along(place * factor + number, (0, 0))))
    if repeats:
        pool = Pool(along(factor, (1, 1)), along(factor, size), padding=along(factor - 1, (0, 0)))
    return Linear(**step.titles, shape=(*along(length * factor, size), len(blocks[0])), parts=tuple(parts), pool=pool)

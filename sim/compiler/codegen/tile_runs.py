"""Weight tiles in host memory, and sequences of tiles that one instruction reads."""

from itertools import groupby
from math import inf
from typing import NamedTuple

from amaranth_tpu.hw.spec.isa import Region

__all__ = ["Tile", "alike", "runs_of", "steps_of"]


class Tile(NamedTuple):
    """A weight tile in host memory: n consecutive vectors for the weight FIFO. The vectors are the columns of the tile. If
    `transpose` is True, the vectors are the rows of the tile. `format` is the code of its :class:`.WeightFormat` in the image."""

    region: Region
    vector: int
    transpose: int = 0
    format: int = 0


def runs_of(tiles, n):
    """Yields `(first tile, number of tiles)` for each sequence of tiles that are contiguous in memory."""
    first = 0
    while first < len(tiles):
        one, size = tiles[first], 1
        while first + size < len(tiles) and tiles[first + size] == one._replace(vector=one.vector + size * n):
            size += 1
        yield one, size
        first += size


def steps_of(places, most=inf):
    """Returns the length of the longest prefix of `places` that is an arithmetic progression with a step from 0 to `most`."""
    count = 1
    while count < len(places) and 0 <= places[count] - places[count - 1] == places[1] - places[0] <= most:
        count += 1
    return count


def alike(count, inputs_of):
    """Yields `(first, count, inputs)` of neighbours among `count` column tiles with equal `inputs_of(number)`."""
    for inputs, some in groupby(range(count), inputs_of):
        numbers = [*some]
        yield numbers[0], len(numbers), inputs

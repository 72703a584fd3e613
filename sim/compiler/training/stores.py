"""Weight tiles in host memory, and buffers on the chip that remember their contents."""

from itertools import groupby
from typing import NamedTuple

from amaranth_tpu.hw.spec.isa import Region

from ..codegen.instructions import Ring

__all__ = ["Store", "Tile", "alike", "runs_of", "steps_of"]


class Tile(NamedTuple):
    """A weight tile in host memory: n consecutive vectors for the weight FIFO. The vectors are the columns of the tile. If
    `transpose` is True, the vectors are the rows of the tile."""

    region: Region
    vector: int
    transpose: int = 0


def runs_of(tiles, n):
    """Yields `(first tile, number of tiles)` for each sequence of tiles that are contiguous in memory."""
    first = 0
    while first < len(tiles):
        one, size = tiles[first], 1
        while first + size < len(tiles) and tiles[first + size] == one._replace(vector=one.vector + size * n):
            size += 1
        yield one, size
        first += size


def steps_of(places):
    """Returns the length of the longest prefix of `places` that is an arithmetic progression with a step of at least 0."""
    count = 1
    while count < len(places) and places[count] - places[count - 1] == places[1] - places[0] >= 0:
        count += 1
    return count


def alike(count, inputs_of):
    """Yields `(first, count, inputs)` of neighbours among `count` column tiles with equal `inputs_of(number)`."""
    for inputs, some in groupby(range(count), inputs_of):
        numbers = [*some]
        yield numbers[0], len(numbers), inputs


class Store:
    """A circular buffer of the unified buffer that remembers its contents.

    Parameters
    ----------
    base, size : int
    kept : dict
        `{key: (first row, rows)}` of all such buffers.
    """

    def __init__(self, base, size, kept):
        self.ring, self.size, self.kept = Ring(base, size), size, kept

    def take(self, count):
        """Allocates `count` rows and returns the first. The previous contents are forgotten."""
        place = self.ring.take(count)
        for key in [key for key, (first, rows) in self.kept.items() if first < place + count and place < first + rows]:
            del self.kept[key]
        return place

    def has(self, key):
        """Returns True if the vectors are in this buffer, and not in another one."""
        return key in self.kept and 0 <= self.kept[key][0] - self.ring.base < self.size

"""Weights whose masters are divided among the cores of a ring. Each core has a segment of the outputs.

In a step, ALL_GATHER gives all cores the upper halves of all masters: the image of the weights. Each tile is gathered shortly
before it is first read, while the array is busy and the port of the unified buffer and the ring are idle.
"""

from bisect import bisect
from dataclasses import dataclass

from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode

from ..codegen.ring_exchange import emit_ring
from ..program import CompileError, too_small
from .matrices import Matrix

__all__ = ["AllGather", "Gatherer", "gathers_of"]

_TOGETHER = 4  # tiles that are gathered at a time


@dataclass(frozen=True)
class AllGather:
    """The gathering of weights.

    Parameters
    ----------
    segment : Matrix
        The master of a core's segment, with a row for each output.
    image : Matrix
        The upper halves of all segments.
    reader : str
        Name of the first sum that reads the image.
    """

    segment: Matrix
    image: Matrix
    reader: str


def gathers_of(stages, matrix, sums):
    """Returns the :class:`AllGather` of the stages that gather weights, in the order in which `sums` read the weights. `matrix`
    returns the matrix of a tensor."""
    found = []
    for stage in stages:
        segment, image = matrix(stage.start), matrix(stage.output)
        number = next(number for number, one in enumerate(sums) if image in one.reads)
        found.append((number, AllGather(segment, image, sums[number].name)))
    return [one for _, one in sorted(found, key=lambda entry: entry[0])]


class Gatherer:
    """The code generator that gathers images of weights, tile by tile.

    Parameters
    ----------
    emitter : MatrixEmitter
    gathers : list of AllGather
        In the order in which the images are read.
    """

    def __init__(self, emitter, gathers):
        self.emitter, self._tiles, self._images = emitter, [], {}
        self._gathered = self._read = 0  # numbers of tiles gathered, and tiles read
        for one in gathers:
            self._images[one.image.vector] = one, len(self._tiles)
            self._tiles += [(one, tile) for tile in range(one.image.tiles)]
        self._vectors = sorted(self._images)
        largest = max(gathers, key=lambda one: one.segment.rows)
        if (emitter.cores + 1) * largest.segment.rows > emitter.exchanges.size:
            needed = emitter.config.unified_buffer_depth * (emitter.cores + 1) * largest.segment.rows // emitter.exchanges.size
            raise CompileError(too_small(emitter.config, "unified_buffer_depth", needed, largest.image.name))

    def is_first(self, sums):
        """Returns True if weights are gathered for a sum, or for the first chunk of the sum."""
        return sums.rows.start == 0 and any(sums.name == one.reader for one, _ in self._images.values())

    def _place(self, tile):
        """Returns `(number of the gathered tile, vector)` of a weight tile. Returns None if it is no part of an image."""
        index = bisect(self._vectors, tile.vector) - 1
        if tile.region is not Region.SCRATCH or index < 0:
            return None
        one, first = self._images[self._vectors[index]]
        place, vector = divmod(tile.vector - one.image.vector, one.image.rows)
        return (first + place, vector) if place < one.image.tiles else None

    def reach(self, tiles):
        """Gathers the tiles that contain these weight tiles, and some tiles after them."""
        wanted = [place[0] for place in map(self._place, tiles) if place and place[0] >= self._read]
        if wanted:
            self._read = max(wanted) + 1
            self._gather_up_to(self._read + _TOGETHER - 1)

    def finish(self):
        """Gathers all tiles that are left, which no sum reads, before masters change."""
        self._gather_up_to(len(self._tiles))

    def _gather_up_to(self, end):
        while self._gathered < min(end, len(self._tiles)):
            self._gather(*self._tiles[self._gathered])
            self._gathered += 1

    def together(self, tile):
        """Returns the number of weight tiles, from `tile` on, that were gathered together. Returns None if later ones have been
        read."""
        place = self._place(tile)
        if place is None or place[0] < self._read - 1:
            return None
        return (self._tiles[place[0]][0].image.rows - place[1]) // self.emitter.n

    def _gather(self, one, tile):
        emitter, segment, image, rows = self.emitter, one.segment, one.image, one.segment.rows
        place = emitter.exchanges.take((emitter.cores + 1) * rows)
        emitter.transfer(Opcode.LOAD, segment.region, segment.place(tile), rows, buffer=place)
        emit_ring(emitter, RingMode.ALL_GATHER, place, place + rows, rows, rows)
        stored = min(emitter.cores * rows, image.rows)
        emitter.transfer(Opcode.STORE, image.region, image.place(tile), stored, buffer=place + rows)

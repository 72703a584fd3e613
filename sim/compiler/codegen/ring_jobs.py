"""Code generation for exchanges between the cores of a ring (:mod:`sim.compiler.lowering.ring`)."""

from bisect import bisect

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode

from ...autodiff.rings import segment_outputs
from ..errors import CompileError, too_small
from ..memory.matrices import stretches
from ..tuning import GATHERED_TILES

__all__ = ["Bucket", "Gatherer", "reduce_all", "reduce_scatter"]


def reduce_all(emitter, one):
    """Emits the instructions of an :class:`AllReduce`, which use the operands' part of the unified buffer."""
    cores, matrix = emitter.cores, one.source
    most = emitter.memories.operands.size // (4 * cores)
    if not most:
        needed = emitter.config.unified_buffer_depth * 4 * cores // max(1, emitter.memories.operands.size)
        raise CompileError(too_small(emitter.config, "unified_buffer_depth", needed, matrix.name))
    segments, each = 1, matrix.tiles * matrix.rows
    if one.outputs is not None:
        segments, each = cores, segment_outputs(one.outputs, cores)
    for tile in range(1 if segments == 1 else matrix.tiles):
        for first in range(0, each, most):
            _exchange(emitter, matrix, tile, [segment * each + first for segment in range(segments)], min(most, each - first))


def _exchange(emitter, matrix, tile, starts, count):
    """Exchanges `count` rows of each segment; `starts` has the first row of each segment. Rows after the last row of the matrix
    are padding, and are neither loaded nor stored."""
    whole = matrix.tiles * matrix.rows if len(starts) == 1 else matrix.rows
    place = emitter.memories.operands.take(2 * count * emitter.cores)
    rows = np.array(starts)[:, None] + np.arange(count)
    ranges = [*stretches(rows[rows < whole], np.flatnonzero(rows < whole))]
    for row, number, size in ranges:
        vector = emitter.offset(matrix, tile, row)
        emitter.transfer(Opcode.LOAD, matrix.region, vector, 2 * size, buffer=place + 2 * number)
    _emit_ring(emitter, RingMode.ALL_REDUCE, place, place, 2 * count, 2 * count)
    for row, number, size in ranges:
        vector = emitter.offset(matrix, tile, row)
        emitter.transfer(Opcode.STORE, matrix.region, vector, 2 * size, buffer=place + 2 * number)


def _emit_ring(emitter, mode, buffer, result, segment, stride):
    """Emits RING instructions for segments of any length, split into rounds that fit the ring unit."""
    most = emitter.config.ring_depth
    whole = segment // most
    for first, size, rounds in ((0, most, whole), (whole * most, segment % most, 1)):
        if size and rounds:
            fields = {"mode": mode, "segment": size, "stride": stride, "rounds": rounds}
            emitter.emit(Opcode.RING, {**fields, "buffer": buffer + first, "result": result + first})


class Bucket:
    """The rows of the unified buffer for the exchange of the column tiles of a job. An instruction holds up accesses between its
    operands and its results. Therefore, the sums of the core's segment follow the gradient."""

    def __init__(self, emitter, exchange, job):
        self.emitter, self.exchange, self.place, self.filled = emitter, exchange, None, 0
        *_, self.column, self.tiles = job
        self.each = 2 * max(exchange.source.rows, exchange.padded(emitter.cores))
        self.size = self.tiles * (self.each + 2 * exchange.made.rows)
        self.key = exchange.source.name, "bucket", self.column

    def take(self, count):
        """Returns the first row for results of `count` rows, which are whole tiles. Allocates the bucket at the first call."""
        emitter, rows = self.emitter, 2 * self.exchange.source.rows
        if self.place is None:
            self.place = emitter.memories.exchanges.take(self.size, self.key)
            for tile in range(self.tiles if self.each > rows else 0):
                emitter.load_zeros(self.place + tile * self.each + rows, self.each - rows)
        self.filled += count // rows
        return self.place + (self.filled - count // rows) * self.each

    def load(self):
        """Loads the gradient from region SCRATCH."""
        emitter, gradient, rows = self.emitter, self.exchange.source, 2 * self.exchange.source.rows
        for tile in range(self.tiles):
            vector = emitter.offset(gradient, self.column + tile)
            emitter.transfer(Opcode.LOAD, gradient.region, vector, rows, buffer=self.take(rows))

    def reduce(self):
        """Emits the exchange, and stores the sums of the core's segment."""
        emitter, total = self.emitter, self.exchange.made
        sums, rows = self.place + self.tiles * self.each, 2 * total.rows
        for tile in range(self.tiles):
            place = self.place + tile * self.each
            _emit_ring(emitter, RingMode.REDUCE_SCATTER, place, sums + tile * rows, rows, rows)
        emitter.transfer(Opcode.STORE, total.region, emitter.offset(total, self.column), self.tiles * rows, buffer=sums)


def reduce_scatter(emitter, exchange, job, bucket):
    """Emits the instructions of a :class:`ReduceScatter` for the column tiles of a job. `bucket` may have their
    gradient."""
    ring = emitter.memories.exchanges
    following = ring.next
    if bucket is None or bucket.filled < bucket.tiles or bucket.key not in emitter.kept:  # other data has overwritten it
        loaded = Bucket(emitter, exchange, job)
        loaded.load()
        if bucket:  # the next bucket does not take the place of one whose exchange follows
            ring.next = following
        bucket = loaded
    bucket.reduce()


class Gatherer:
    """The code generator that gathers images of weights, tile by tile: the :class:`.AllGather` `gathers`, in order."""

    def __init__(self, emitter, gathers):
        self.emitter, self._tiles, self._images = emitter, [], {}
        self._gathered = self._read = 0  # numbers of tiles gathered, and tiles read
        for one in gathers:
            self._images[one.image.vector] = one, len(self._tiles)
            self._tiles += [(one, tile) for tile in range(one.image.tiles)]
        self._vectors = sorted(self._images)
        largest = max(gathers, key=lambda one: one.segment.rows)
        if (emitter.cores + 1) * largest.segment.rows > emitter.memories.exchanges.size:
            needed = (
                emitter.config.unified_buffer_depth
                * (emitter.cores + 1)
                * largest.segment.rows
                // emitter.memories.exchanges.size
            )
            raise CompileError(too_small(emitter.config, "unified_buffer_depth", needed, largest.image.name))

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
            self._gather_up_to(self._read + GATHERED_TILES - 1)

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
        place = emitter.memories.exchanges.take((emitter.cores + 1) * rows)
        emitter.transfer(Opcode.LOAD, segment.region, segment.place(tile), rows, buffer=place)
        _emit_ring(emitter, RingMode.ALL_GATHER, place, place + rows, rows, rows)
        stored = min(emitter.cores * rows, image.rows)
        emitter.transfer(Opcode.STORE, image.region, image.place(tile), stored, buffer=place + rows)

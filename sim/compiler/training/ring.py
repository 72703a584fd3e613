"""Exchanges between the cores of a ring: sums of gradients, and weights whose masters are divided among the cores.

ALL_REDUCE: each core stores the gradient of its own samples in region SCRATCH, and the sum over all cores replaces it. Then every
core updates all parameters. REDUCE_SCATTER: each core gets the sum of its own segment of the outputs, and updates this segment
and keeps its master. In a step, ALL_GATHER gives all cores the upper halves of all masters: the image of the
weights. Each tile is gathered shortly before it is first read, while the array is busy and the port of the unified buffer and the
ring are idle.

Each output of weights belongs to the segment of one core, and each segment has its own order of sums. Biases and gains have the
order of segment 0, so the other segments of their exchange contain no data.
"""

from bisect import bisect
from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode

from ...autodiff.rings import segment_outputs
from ..codegen.ring_exchange import emit_ring
from ..program import CompileError, too_small
from .forms import NotMatrices
from .matrices import Matrix, stretches
from .sums import Move

__all__ = [
    "AllGather",
    "AllReduce",
    "Bucket",
    "Gatherer",
    "ReduceScatter",
    "all_reduce",
    "divided_tensors",
    "gathers_of",
    "reduce_all",
    "reduce_scatter",
    "reduce_scatter_of",
]

_TOGETHER = 4  # tiles that are gathered at a time


@dataclass
class AllReduce(Move):
    """The sum of a gradient over all cores.

    Parameters
    ----------
    gradient : Matrix
        Interleaved.
    outputs : int or None
        Number of outputs, which are rows of each tile, to divide into a segment for each core. None: all rows are in segment 0.
    """

    gradient: Matrix
    outputs: int | None
    is_update = True

    @property
    def name(self):
        return f"{self.gradient.name}, exchanged"

    @property
    def reads(self):
        return [self.gradient]

    @property
    def writes(self):
        return [self.gradient]


def all_reduce(stage, gradient, outputs):
    """Returns the :class:`AllReduce` of a stage with a ring operation. `outputs` is the number of channels of the gradient.
    Raises NotMatrices if it is another operation."""
    divided = stage.ring == "all_reduce_segments"
    if not divided and stage.ring != "all_reduce" or divided and gradient.form != "turned":
        raise NotMatrices(f"{stage.output}: this sum over the cores can't be compiled as matrix products")
    return AllReduce(gradient, outputs if divided else None)


def reduce_all(emitter, one):
    """Emits the instructions of an :class:`AllReduce`, which use the operands' part of the unified buffer."""
    cores, matrix = emitter.cores, one.gradient
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
    emit_ring(emitter, RingMode.ALL_REDUCE, place, place, 2 * count, 2 * count)
    for row, number, size in ranges:
        vector = emitter.offset(matrix, tile, row)
        emitter.transfer(Opcode.STORE, matrix.region, vector, 2 * size, buffer=place + 2 * number)


@dataclass
class ReduceScatter(Move):
    """The sum of a gradient over all cores. Each core gets the sum of its own segment of the outputs.

    Parameters
    ----------
    gradient, total : Matrix
        Interleaved. `total` has the rows of a core's segment.
    joined : bool
        True: the gradient of each job has all rows of its column tiles, which are exchanged from the unified buffer.
    """

    gradient: Matrix
    total: Matrix
    joined: bool = False
    is_update = True

    @property
    def name(self):
        return self.total.name

    @property
    def reads(self):
        return [self.gradient]

    @property
    def writes(self):
        return [self.total]

    def padded(self, cores):
        """Returns the rows of all segments. The last ones may be padding."""
        return cores * self.total.rows


def divided_tensors(step):
    """Returns the names of the tensors that are divided among the cores: each core has a segment of their outputs."""
    shared = filter(step.is_shared, step.masters)
    found = {name for one in shared for name in (step.masters[one], *step.slots[one].values())}
    for stage in step.stages:
        reads = {stage.start, stage.times, *(term.source for term in stage.terms)}
        if stage.ring == "reduce_scatter" or stage.ring is None and reads & found:
            found.add(stage.output)
    return found


def reduce_scatter_of(stage, matrix):
    """Returns the :class:`ReduceScatter` of a stage. `matrix` returns the matrix of a tensor. Raises NotMatrices if the gradient
    has no row for each output."""
    gradient, total = matrix(stage.start), matrix(stage.output)
    if gradient.form != "turned":
        raise NotMatrices(f"{stage.output}: this sum over the cores can't be compiled as matrix products")
    return ReduceScatter(gradient, total)


class Bucket:
    """The rows of the unified buffer for the exchange of the column tiles of a job. An instruction holds up accesses between its
    operands and its results. Therefore, the sums of the core's segment follow the gradient.

    Parameters
    ----------
    emitter : MatrixEmitter
    exchange : ReduceScatter
    job : (int, int, int, int)
    """

    def __init__(self, emitter, exchange, job):
        self.emitter, self.exchange, self.place, self.filled = emitter, exchange, None, 0
        *_, self.column, self.tiles = job
        self.each = 2 * max(exchange.gradient.rows, exchange.padded(emitter.cores))
        self.size = self.tiles * (self.each + 2 * exchange.total.rows)
        self._key = exchange.gradient.name, "bucket", self.column

    def take(self, count):
        """Returns the first row for results of `count` rows, which are whole tiles. Allocates the bucket at the first call."""
        emitter, rows = self.emitter, 2 * self.exchange.gradient.rows
        if self.place is None:
            self.place = emitter.memories.exchanges.take(self.size)
            emitter.kept[self._key] = self.place, self.size
            for tile in range(self.tiles if self.each > rows else 0):
                emitter.load_zeros(self.place + tile * self.each + rows, self.each - rows)
        self.filled += count // rows
        return self.place + (self.filled - count // rows) * self.each

    @property
    def is_there(self):
        """Returns True if the bucket is full, and no other data has overwritten it."""
        return self.filled == self.tiles and self._key in self.emitter.kept

    def load(self):
        """Loads the gradient from region SCRATCH."""
        emitter, gradient, rows = self.emitter, self.exchange.gradient, 2 * self.exchange.gradient.rows
        for tile in range(self.tiles):
            vector = emitter.offset(gradient, self.column + tile)
            emitter.transfer(Opcode.LOAD, gradient.region, vector, rows, buffer=self.take(rows))

    def reduce(self):
        """Emits the exchange, and stores the sums of the core's segment."""
        emitter, total = self.emitter, self.exchange.total
        sums, rows = self.place + self.tiles * self.each, 2 * total.rows
        for tile in range(self.tiles):
            place = self.place + tile * self.each
            emit_ring(emitter, RingMode.REDUCE_SCATTER, place, sums + tile * rows, rows, rows)
        emitter.transfer(Opcode.STORE, total.region, emitter.offset(total, self.column), self.tiles * rows, buffer=sums)


def reduce_scatter(emitter, exchange, job, bucket):
    """Emits the instructions of a :class:`ReduceScatter` for the column tiles of a job. `bucket` may have their
    gradient."""
    ring = emitter.memories.exchanges.ring
    following = ring.next
    if bucket is None or not bucket.is_there:
        loaded = Bucket(emitter, exchange, job)
        loaded.load()
        if bucket:  # the next bucket does not take the place of one whose exchange follows
            ring.next = following
        bucket = loaded
    bucket.reduce()


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
        place = emitter.memories.exchanges.take((emitter.cores + 1) * rows)
        emitter.transfer(Opcode.LOAD, segment.region, segment.place(tile), rows, buffer=place)
        emit_ring(emitter, RingMode.ALL_GATHER, place, place + rows, rows, rows)
        stored = min(emitter.cores * rows, image.rows)
        emitter.transfer(Opcode.STORE, image.region, image.place(tile), stored, buffer=place + rows)

"""Updates on the cores of a ring. The gradients of all shards are summed before an update uses them.

The binary32 sums of some k tiles are written to the unified buffer as a bucket, `[k tile][segment][output]`. For weights,
REDUCE_SCATTER gives each core the sum of its own segment, and the core updates the masters and optimizer state of that segment
only. For biases, which are in segment 0, ALL_REDUCE gives each core all sums, and each core updates the whole bias. The sums
return to the accumulators through region SCRATCH: they are loaded as bias rows, from which a pass over zeros starts.

At the start of the next step, ALL_GATHER gives all cores the upper halves of all masters. This is a good time, because the array
is busy while the buffer's port and the ring are idle.
"""

from dataclasses import dataclass, replace

from amaranth_tpu.hw.spec.isa import Format, Opcode, Region, RingMode

from ..autodiff.rings import segment_outputs
from ..compiler.codegen.instructions import Ring
from ..compiler.codegen.ring_exchange import emit_ring
from ..compiler.codegen.tile_emitter import NOTHING
from .parameters import MASTER
from .sharded_planes import ShardedPlanes
from .step_emitter import from_rows

__all__ = ["SharedRule", "bucket_rows", "Gatherer", "GATHERED_TOGETHER"]


def _segment(planes, cores):
    """Returns the number of rows in a core's segment of a k tile. For a bias, which is not divided, it is the number of all
    rows."""
    return planes.rows if planes.is_bias else segment_outputs(planes.outputs, cores)


def bucket_rows(planes, cores):
    """Returns the number of rows that the sums of one k tile take in a bucket: one segment per core, including padding."""
    return cores * _segment(planes, cores)


@dataclass(frozen=True)
class _Piece:
    """A range of k tiles in the image of one parameter's weights, gathered together."""

    planes: ShardedPlanes
    first: int
    tiles: int

    def has(self, tile):
        """Returns True if a weight tile is in this range of the image."""
        number = (tile.vector - self.planes.first) // self.planes.rows
        return tile.region is Region.SCRATCH and self.first <= number < self.first + self.tiles

    @property
    def end(self):
        """Returns the first vector in SCRATCH after the range."""
        return self.planes.first + (self.first + self.tiles) * self.planes.rows


class Gatherer:
    """The code generator that gathers the images of divided weights: the upper halves of all masters. Each range of tiles is
    gathered shortly before it is read.

    Parameters
    ----------
    emitter : StepEmitter
    planes : list of ShardedPlanes
        Planes of the weights, in the order in which they are read.
    ring : Ring
        Circular buffer in the unified buffer, with space for :data:`GATHERED_TOGETHER` ranges of tiles.
    """

    def __init__(self, emitter, planes, ring):
        self.emitter, self.ring, self.pieces = emitter, ring, []
        self.gathered = self.read = 0  # numbers of ranges gathered, and ranges read
        for one in planes:
            size = max(1, ring.size // GATHERED_TOGETHER // (bucket_rows(one, one.cores) + one.segment))
            for first in range(0, one.k_tiles, size):
                self.pieces.append(_Piece(one, first, min(size, one.k_tiles - first)))

    def _number(self, tile):
        """Returns the number of the range that contains a tile. Returns None if there is no such range, or if the range has
        already been read."""
        return next((number for number in range(self.read, len(self.pieces)) if self.pieces[number].has(tile)), None)

    def reach(self, tiles):
        """Gathers the ranges that contain these tiles, and some later ranges in advance. Ranges that have already been gathered
        are skipped."""
        wanted = [number for number in map(self._number, tiles) if number is not None]
        self.read = max([self.read, *(number + 1 for number in wanted)])
        while wanted and self.gathered < min(len(self.pieces), self.read + GATHERED_TOGETHER - 1):
            self._gather(self.pieces[self.gathered])
            self.gathered += 1

    def together(self, tile):
        """Returns the number of tiles, starting at `tile`, that are gathered together. Returns None if no range that is still to
        be read contains the tile."""
        number = self._number(tile)
        return None if number is None else (self.pieces[number].end - tile.vector) // self.emitter.n

    def _gather(self, piece):
        emitter, planes, first, count = self.emitter, piece.planes, piece.first, piece.tiles
        each, padded, (own, _) = planes.segment, bucket_rows(planes, planes.cores), planes.places(MASTER)
        buffer, result = self.ring.take(count * each), self.ring.take(count * padded)
        emitter.load(Region.SCRATCH, own + first * each, count * each, buffer)
        for tile in range(count):
            emit_ring(emitter, RingMode.ALL_GATHER, buffer + tile * each, result + tile * padded, each, each)
        vector = planes.first + first * planes.rows
        if padded == planes.rows:
            emitter.store(Region.SCRATCH, vector, count * padded, result)
            return
        for tile in range(count):
            emitter.store(Region.SCRATCH, vector + tile * planes.rows, min(padded, planes.rows), result + tile * padded)


#: Number of ranges of image tiles in the unified buffer at a time.
GATHERED_TOGETHER = 4


@dataclass
class _Bucket:
    """A bucket: sums of `tiles` k tiles starting at tile `first`, stored at address `place` of the unified buffer. `ring` is the
    free space after the bucket."""

    planes: object
    first: int
    tiles: int
    place: int
    ring: Ring
    slot: int


class SharedRule:
    """An update rule for the cores of a ring. It sums the gradients of all cores, and then applies the rule of an optimizer. The
    interface is the same as for :class:`sim.backward.updates._Rule`.

    Parameters
    ----------
    rule : object
        Update rule of the optimizer.
    ring : Ring
        Circular buffer in the unified buffer.
    slots : int
        Number of buckets in flight.
    staging : sequence of int
        For each bucket in flight, the first vector in region SCRATCH through which its sums return to the accumulators.
    rows : int
        Number of rows of sums per bucket, in whole k tiles.
    most : int
        Largest number of rows in one update.
    """

    def __init__(self, rule, ring, slots, staging, rows, most):
        self.rule, self.emitter, self.cores, self.most = rule, rule.emitter, rule.emitter.cores, most
        size = ring.size // slots
        self.places, self.staging, self.free = [ring.base + slot * size for slot in range(slots)], staging, [*range(slots)]
        self.size, self.rows, self.bucket = size, rows, None

    def _tiles(self, planes):
        """Returns the number of k tiles per bucket."""
        return max(1, self.rows // planes.rows)

    def split(self, parts):
        """Yields the blocks of `parts`, a sequence of :class:`.GradientBlock`, divided so that each block belongs to one
        bucket."""
        for part in parts:
            size = self._tiles(part.planes) * part.planes.rows
            while (rest := size - part.first % size) < part.rows:
                yield replace(part, rows=rest)
                part = replace(part, first=part.first + rest, acc=part.acc + rest, rows=part.rows - rest)
            yield part

    def steps(self, part, _):
        """Yields after each step of an update, as the optimizer's rule does. `part` is a block from :meth:`split`."""
        bucket = self.bucket = self.bucket or self._new(part)
        self._put(bucket, part)
        if part.first + part.rows < (bucket.first + bucket.tiles) * part.planes.rows:
            yield True
            return
        self.bucket = None
        yield True
        yield from self._sharded(bucket, part) if isinstance(part.planes, ShardedPlanes) else self._replicated(bucket, part)
        self.free.append(bucket.slot)

    def _new(self, part):
        """Returns an empty bucket that begins with the k tile of the block `part`. Rows that will get no sum are set to +0 if an
        update may read them."""
        planes, slot = part.planes, self.free.pop(0)
        ring, first = Ring(self.places[slot], self.size), part.first // planes.rows
        tiles = min(self._tiles(planes), planes.k_tiles - first)
        rows = bucket_rows(planes, self.cores)
        place = ring.take(2 * tiles * rows)
        if not planes.is_bias and rows > planes.rows:
            for tile in range(tiles):
                self.emitter.load_zeros(place + 2 * (tile * rows + planes.rows), 2 * (rows - planes.rows))
        return _Bucket(planes, first, tiles, place, ring, slot)

    def _put(self, bucket, part):
        """Writes the sums of a block to the bucket. Rows of a k tile after the last segment are omitted, because they are zeros
        that no update reads."""
        rows, each, done = bucket_rows(part.planes, self.cores), part.planes.rows, 0
        step = part.rows if rows == each else each
        while done < part.rows:
            tile, first = divmod(part.first + done, each)
            count = min(step, part.rows - done)
            kept = count if step == part.rows else min(count, rows - first)
            if kept > 0:
                place = bucket.place + 2 * ((tile - bucket.first) * rows + first)
                self.emitter.activate(part.acc + done, place, kept, Format.BINARY32)
            done += count

    def _replicated(self, bucket, part):
        """Sums the bucket over all cores with ALL_REDUCE, and updates all rows on every core."""
        planes, each = part.planes, _segment(part.planes, self.cores)
        places = [bucket.place + 2 * tile * self.cores * each for tile in range(bucket.tiles)]
        for place in places:
            emit_ring(self.emitter, RingMode.ALL_REDUCE, place, place, 2 * each, 2 * each)
        yield
        filled = planes.rows if planes.is_bias else min(planes.rows, self.cores * each)
        for tile, place in enumerate(places):
            for low in range(0, filled, self.most):
                first, rows = (bucket.first + tile) * planes.rows + low, min(self.most, filled - low)
                self.emitter.store(Region.SCRATCH, self.staging[bucket.slot], 2 * rows, place + 2 * low)
                yield
                yield from self._update(bucket, part, self.staging[bucket.slot], first, rows)

    def _sharded(self, bucket, part):
        """Sums the bucket over all cores with REDUCE_SCATTER, and updates on each core its segment of each k tile."""
        emitter, each, padded = self.emitter, part.planes.segment, bucket_rows(part.planes, self.cores)
        size, staging = bucket.tiles * each, self.staging[bucket.slot]
        sums = bucket.ring.take(2 * size)
        for tile in range(bucket.tiles):
            place = bucket.place + 2 * tile * padded
            emit_ring(emitter, RingMode.REDUCE_SCATTER, place, sums + 2 * tile * each, 2 * each, 2 * each)
        emitter.store(Region.SCRATCH, staging, 2 * size, sums)
        yield
        for first in range(0, size, self.most):
            rows = min(self.most, size - first)
            yield from self._update(bucket, part, staging + 2 * first, bucket.first * each + first, rows)
            yield

    def _update(self, bucket, part, staging, first, rows):
        """Applies the optimizer's rule to `rows` rows starting at `first`, with the sums at vector `staging` of region
        SCRATCH."""
        emitter = self.emitter
        bias, acc = emitter.take_bias(rows), self.rule.acc.take(rows)
        emitter.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, staging, rows, bias=bias)
        emitter.bring([NOTHING])
        emitter.pass_over(emitter.rows["identity"], rows, acc, 1, {**from_rows(bias), "rows0_stride": 0})
        steps = self.rule.steps(replace(part, first=first, rows=rows, acc=acc), bucket.ring)
        while not next(steps):
            pass
        for _ in steps:
            yield

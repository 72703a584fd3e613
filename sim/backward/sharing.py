"""Updates on the cores of a ring: gradients of all shards are summed before they are used.

The sums of some k tiles, binary32, come to the unified buffer as a bucket, `[k tile][segment][output]`. Of weights, each core gets
the sum of its own segment (REDUCE_SCATTER), and updates these masters and slots alone. All cores get the upper halves of all
masters (ALL_GATHER) at the beginning of the next step: there the array has work while the buffer's port and the ring have none. Of
biases, whose segment is 0, each core gets all sums (ALL_REDUCE), and updates all. Sums go back to the accumulators by way of region
SCRATCH, as bias rows that a pass over zeros begins from.
"""

from dataclasses import dataclass, replace

from amaranth_tpu.hw.spec.isa import Format, Opcode, Region, RingMode

from ..compiler.instructions import Ring
from ..golden.shards import segment_outputs
from .parameters import MASTER
from .sharded_planes import ShardedPlanes
from .step_emitter import from_rows
from .tensors import NOTHING

__all__ = ["SharedRule", "bucket_rows", "gather", "GATHERED_TOGETHER"]


def _exchange(emitter, mode, buffer, result, segment, stride):
    """RING over segments of any length, in rounds that the ring unit can take in."""
    most = emitter.config.ring_depth
    whole = segment // most
    for first, size, rounds in ((0, most, whole), (whole * most, segment % most, 1)):
        if size and rounds:
            fields = {"mode": mode, "segment": size, "stride": stride, "rounds": rounds}
            emitter.emit(Opcode.RING, {**fields, "buffer": buffer + first, "result": result + first})


def _segment(planes, cores):
    """Rows of sums of a segment of a k tile: outputs; of a bias, which has but one, all."""
    return planes.rows if planes.is_bias else segment_outputs(planes.outputs, cores)


def bucket_rows(planes, cores):
    """Rows of sums of a k tile in a bucket: a segment for each core, of which the last ones may be zeros."""
    return cores * _segment(planes, cores)


def gather(emitter, planes, ring, most):
    """The image of weights that the cores share, from the upper halves of all masters: some k tiles at a time, of `most` vectors,
    by way of a ring of places in the unified buffer."""
    each, padded = planes.segment, bucket_rows(planes, planes.cores)
    (own, _), tiles = planes.places(MASTER), max(1, most // (padded + each))
    for first in range(0, planes.k_tiles, tiles):
        count = min(tiles, planes.k_tiles - first)
        buffer, result = ring.take(count * each), ring.take(count * padded)
        emitter.load(Region.SCRATCH, own + first * each, count * each, buffer)
        for tile in range(count):
            _exchange(emitter, RingMode.ALL_GATHER, buffer + tile * each, result + tile * padded, each, each)
        vector = planes.first + first * planes.rows
        if padded == planes.rows:
            emitter.store(Region.SCRATCH, vector, count * padded, result)
            continue
        for tile in range(count):
            emitter.store(Region.SCRATCH, vector + tile * planes.rows, min(padded, planes.rows), result + tile * padded)


#: Pieces of images on their way through the unified buffer at a time.
GATHERED_TOGETHER = 4


@dataclass
class _Bucket:
    """Sums of k tiles from `first` on, `tiles` of them, in the unified buffer at `place`; `ring` : what is free behind them."""

    planes: object
    first: int
    tiles: int
    place: int
    ring: Ring
    slot: int


class SharedRule:
    """What :func:`sim.backward.updates.update_all` asks for, around the rule of an optimizer.

    Parameters
    ----------
    rule : object
        Of the optimizer.
    ring : Ring
        Places in the unified buffer.
    slots : int
        Buckets under way at a time.
    staging : sequence of int
        First vectors in region SCRATCH for sums on their way, for each of these.
    most : int
        Rows that are updated at a time.
    """

    def __init__(self, rule, ring, slots, staging, most):
        self.rule, self.emitter, self.cores, self.most = rule, rule.emitter, rule.emitter.cores, most
        size = ring.size // slots
        self.places, self.staging, self.free = [ring.base + slot * size for slot in range(slots)], staging, [*range(slots)]
        self.size, self.bucket = size, None

    def steps(self, part, _):
        """As of the rule. Parts are k tiles, or pieces of one, one after the other."""
        bucket = self.bucket = self.bucket or self._new(part)
        self._put(bucket, part)
        if (part.first + part.rows) % part.planes.rows:
            yield True
            return
        self.bucket = None
        yield True
        yield from self._sharded(bucket, part) if isinstance(part.planes, ShardedPlanes) else self._replicated(bucket, part)
        self.free.append(bucket.slot)

    def _new(self, part):
        """An empty bucket; what no sum comes to is +0, as long as it can be added to what is kept."""
        planes, slot = part.planes, self.free.pop(0)
        ring, tiles = Ring(self.places[slot], self.size), -(-part.rows // planes.rows)
        rows = bucket_rows(planes, self.cores)
        place = ring.take(2 * tiles * rows)
        if not planes.is_bias and rows > planes.rows:
            for tile in range(tiles):
                self.emitter.load_zeros(place + 2 * (tile * rows + planes.rows), 2 * (rows - planes.rows))
        return _Bucket(planes, part.first // planes.rows, tiles, place, ring, slot)

    def _put(self, bucket, part):
        """Sums -> the bucket. Rows of a k tile behind the last segment are zeros that nobody needs."""
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
        """All cores update all rows."""
        planes, each = part.planes, _segment(part.planes, self.cores)
        places = [bucket.place + 2 * tile * self.cores * each for tile in range(bucket.tiles)]
        for place in places:
            _exchange(self.emitter, RingMode.ALL_REDUCE, place, place, 2 * each, 2 * each)
        yield
        filled = planes.rows if planes.is_bias else min(planes.rows, self.cores * each)
        for tile, place in enumerate(places):
            for low in range(0, filled, self.most):
                first = (bucket.first + tile) * planes.rows + low
                yield from self._update(bucket, part, place + 2 * low, first, min(self.most, filled - low))

    def _sharded(self, bucket, part):
        """Each core updates its segment of each k tile."""
        emitter, each, padded = self.emitter, part.planes.segment, bucket_rows(part.planes, self.cores)
        sums = bucket.ring.take(2 * bucket.tiles * each)
        for tile in range(bucket.tiles):
            place = bucket.place + 2 * tile * padded
            _exchange(emitter, RingMode.REDUCE_SCATTER, place, sums + 2 * tile * each, 2 * each, 2 * each)
        yield
        for first in range(0, bucket.tiles * each, self.most):
            rows = min(self.most, bucket.tiles * each - first)
            yield from self._update(bucket, part, sums + 2 * first, bucket.first * each + first, rows)

    def _update(self, bucket, part, sums, first, rows):
        """The rule, for sums at this place of the unified buffer."""
        emitter, staging = self.emitter, self.staging[bucket.slot]
        emitter.store(Region.SCRATCH, staging, 2 * rows, sums)
        yield
        bias, acc = emitter.take_bias(rows), self.rule.acc.take(rows)
        emitter.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, staging, rows, bias=bias)
        emitter.bring([NOTHING])
        emitter.pass_over(emitter.rows["identity"], rows, acc, 1, {**from_rows(bias), "rows0_stride": 0})
        steps = self.rule.steps(replace(part, first=first, rows=rows, acc=acc), bucket.ring)
        while not next(steps):
            pass
        for _ in steps:
            yield

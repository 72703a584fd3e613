"""Code of the parameter updates: the optimizers of :mod:`sim.ir.optimizers`, as instructions on one block of a parameter's
gradient.

An update consists of steps. The steps that read the gradient precede the sums of the next block. The remaining steps are
interleaved with these sums, which hides the latency of the steps in the activation unit.
"""

from collections import deque

from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode, Region

from ..compiler.codegen.instructions import Ring
from ..ir.optimizers import Adam, Sgd
from .parameters import MASTER
from .sharing import SharedRule, bucket_rows
from .step_emitter import FROM_ZERO, from_rows

__all__ = ["update_all", "rows_in_flight", "rows_of_factors", "places_of_sums", "IN_FLIGHT", "BUCKET_PARTS"]

IN_FLIGHT = (3, 2)  # limits on blocks in flight: the first on one core, the faster of both on the cores of a ring
BUCKET_PARTS = 2  # number of blocks that the ring reduces together
_PLACES = {Sgd: 3, Adam: 8}  # vectors of the unified buffer per row of a block


def rows_in_flight(optimizer, planes, cores, in_flight):
    """Returns the number of unified-buffer vectors that updates need per row of a block, if `in_flight` blocks are in flight. On
    the cores of a ring, it depends on the planes of the parameters."""
    places = _PLACES[type(optimizer)]
    if cores > 1:  # sums of the gradient, sums of one core's segment, and updated values
        padded = max(-(-bucket_rows(one, cores) // one.rows) for one in planes if not one.is_bias)
        places = padded * BUCKET_PARTS * (2 + -(-(2 + places) // cores))
    return in_flight * places


def rows_of_factors(optimizer):
    """Returns the names of the update factors that are loaded as operands, in addition to the identity."""
    return {Sgd: ("momentum", "decay"), Adam: ("first", "decay")}[type(optimizer)]


def places_of_sums(optimizer):
    """Returns the number of accumulator areas for the sums of updates. Adam computes several sums per block, one after the
    other. One area is written while a second area is read."""
    return {Sgd: 1, Adam: 2}[type(optimizer)]


def update_all(emitter, optimizer, parts, ring, acc, in_flight, staging=(), rows=0, most=0):
    """Emits the updates of all blocks, in order.

    Parameters
    ----------
    parts : iterable of GradientBlock
        Blocks of gradients. Each is yielded after the instructions for its sums have been emitted.
    ring, acc : Ring
        Circular buffers of unified-buffer vectors, and of accumulator rows.
    in_flight : int
        Largest number of blocks in flight. On a ring, these are buckets.
    staging, rows, most :
        Only on the cores of a ring; see :class:`sim.backward.sharing.SharedRule`.
    """
    rule = {Sgd: _Sgd, Adam: _Adam}[type(optimizer)](emitter, optimizer, acc)
    if emitter.cores > 1:
        rule = SharedRule(rule, ring, in_flight, staging, rows, most)
        parts = rule.split(parts)
    size, under_way = ring.size // in_flight, deque()
    for number, part in enumerate(parts):
        while len(under_way) >= in_flight:
            _go_on(under_way)
        steps = rule.steps(part, Ring(ring.base + number % in_flight * size, size))
        while not next(steps):
            _go_on(under_way)
        _go_on(under_way)
        under_way.append(steps)
    while under_way:
        _go_on(under_way)


def _go_on(under_way):
    """Advances each update in flight by one step, and removes updates that have ended."""
    for steps in [*under_way]:
        if next(steps, True) is True:
            under_way.remove(steps)


class _Rule:
    """The update rule of an optimizer: a generator of instructions.

    Parameters
    ----------
    emitter : StepEmitter
    optimizer : Sgd or Adam
    acc : Ring
        Circular buffer of accumulator rows, for the sums of updates.
    """

    def __init__(self, emitter, optimizer, acc):
        self.emitter, self.decays, self.acc = emitter, bool(optimizer.weight_decay), acc

    def steps(self, part, ring):
        """Emits the update of a block, and yields after each step. `ring` is a circular buffer in the unified buffer.

        The generator yields False as long as the sums of the block are needed, then True once, and None after that.
        """
        raise NotImplementedError

    def _places(self, part, name):
        """Returns the first vector of a block in SCRATCH, for each plane with this name."""
        return [place + part.first for place in part.planes.places(name)]

    def _from_halves(self, planes, rows):
        """Loads binary32 numbers, whose upper and lower halves are in two planes, as bias rows. Returns the instruction fields
        with which sums start from these rows."""
        return from_rows(self.emitter.load_halves(planes, [(0, rows)]))

    def _store_halves(self, acc, planes, rows, place):
        """Writes the upper and lower halves of sums to `place` in the unified buffer, and from there to two planes in SCRATCH."""
        self.emitter.activate(acc, place, rows, Format.PLANES)
        for index, vector in enumerate(planes):
            self.emitter.store(Region.SCRATCH, vector, rows, place + index * rows)


class _Sgd(_Rule):
    """The update rule of SGD: V' = bf16(G + mu V), or bf16((G + mu V) + decay * upper half of W) with weight decay; W' = W - r
    V'. With update lanes, UPDATE computes it, but for weight decay."""

    def steps(self, part, ring):
        emitter, rows, master, (momentum,) = self.emitter, part.rows, *(self._places(part, one) for one in (MASTER, "momentum"))
        if emitter.config.update_lanes and not (self.decays and part.decays):
            emitter.update(part.acc, rows, master, momentum)
            yield True
            return
        place = ring.take(rows)
        emitter.add_product("momentum", momentum, rows, part.acc)
        if self.decays and part.decays:
            emitter.add_product("decay", master[0], rows, part.acc)
        emitter.activate(part.acc, place, rows)
        emitter.store(Region.SCRATCH, momentum, rows, place)
        yield True
        start, acc = self._from_halves(master, rows), self.acc.take(rows)
        emitter.add_scaled("rate", place, rows, acc, start)
        self._store_halves(acc, master, rows, ring.take(2 * rows))


class _Adam(_Rule):
    """The update rule of :class:`sim.ir.optimizers.Adam`. Its product u = bf16(M' p) does not read the accumulators A, as in the
    class, but loads M' = bf16(A) back from the unified buffer. The accumulators are then free for the next block."""

    def steps(self, part, ring):
        emitter, rows, master = self.emitter, part.rows, self._places(part, MASTER)
        square, first, second, root, other = (ring.take(size * rows) for size in (1, 1, 2, 1, 1))
        emitter.activate(part.acc, square, rows)
        self._multiply(part.acc, square, rows)
        yield False
        (moment,), halves = self._places(part, "first"), self._places(part, "second")
        emitter.add_product("first", moment, rows, part.acc)
        emitter.activate(part.acc, first, rows)
        emitter.store(Region.SCRATCH, moment, rows, first)
        yield True
        emitter.load(Region.SCRATCH, halves[0], rows, second)
        start, acc = self._from_halves(halves, rows), self.acc.take(rows)
        emitter.add_scaled("moved", second, rows, acc, start)
        emitter.add_scaled("square", square, rows, acc)
        self._store_halves(acc, halves, rows, second)
        emitter.activate(acc, root, rows, function=FunctionCode.TABLE)
        yield
        acc = self.acc.take(rows)
        emitter.add_scaled("identity", first, rows, acc, FROM_ZERO)
        self._multiply(acc, root, rows)
        acc = self.acc.take(rows)
        emitter.add_scaled("beyond", second, rows, acc, FROM_ZERO)
        emitter.activate(acc, other, rows, function=FunctionCode.TABLE)
        yield
        acc = self.acc.take(rows)
        emitter.add_scaled("identity", root, rows, acc, FROM_ZERO)
        self._multiply(acc, other, rows)
        yield
        start, acc = self._from_halves(master, rows), self.acc.take(rows)
        emitter.add_scaled("rate", other, rows, acc, start)
        if self.decays and part.decays:
            emitter.add_product("decay", master[0], rows, acc)
        self._store_halves(acc, master, rows, ring.take(2 * rows))

    def _multiply(self, acc, place, rows):
        """Rounds sums, multiplies them by vectors at address `place`, and overwrites the vectors with the products."""
        fields = {"rows": rows, "lanes": self.emitter.n, "acc": acc, "operand": place, "buffer": place}
        self.emitter.emit(Opcode.MULTIPLY, fields)

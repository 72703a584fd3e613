"""Updates: the optimizers of :mod:`sim.ir.optimizers` as instructions on a part of a parameter's gradient.

An update is a sequence of steps. The steps up to the last one that reads the gradient come before the next part's gradient. The
other steps are interleaved with that gradient, which hides their latency through the activation unit.
"""

from collections import deque

from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode, Region

from ..compiler.codegen.instructions import Ring
from ..ir.optimizers import Adam, Sgd
from .parameters import MASTER
from .sharing import SharedRule, bucket_rows
from .step_emitter import FROM_ZERO, from_rows

__all__ = ["update_all", "rows_in_flight", "rows_of_factors", "places_of_sums", "IN_FLIGHT", "BUCKET_PARTS"]

IN_FLIGHT = 3  # most parts in flight
BUCKET_PARTS = 2  # parts that the ring reduces together
_PLACES = {Sgd: 3, Adam: 8}  # vectors of the unified buffer for each row of a part


def rows_in_flight(optimizer, planes=(), cores=1):
    """Returns the number of buffer vectors that updates take for each row of a part; on the cores of a ring, for these planes."""
    places = _PLACES[type(optimizer)]
    if cores > 1:  # sums of the gradient, one core's sums, and the updated values
        padded = max(-(-bucket_rows(one, cores) // one.rows) for one in planes if not one.is_bias)
        places = padded * BUCKET_PARTS * (2 + -(-(2 + places) // cores))
    return IN_FLIGHT * places


def rows_of_factors(optimizer):
    """Returns the names of the update factors that are operands, besides the identity."""
    return {Sgd: ("momentum", "decay"), Adam: ("first", "decay")}[type(optimizer)]


def places_of_sums(optimizer):
    """Returns the number of places in the accumulators for the sums of updates. Adam computes several sums for a part, one after
    the other. Sums of one part are computed while sums of another are read."""
    return {Sgd: 1, Adam: 2}[type(optimizer)]


def update_all(emitter, optimizer, parts, ring, acc, staging=(), rows=0, most=0):
    """Emits the updates of all parts, in the order of the parts.

    Parameters
    ----------
    parts : iterable of Part
        Each is yielded once the instructions for its sums have been emitted.
    ring, acc : Ring
        Places in the unified buffer and in the accumulators.
    staging, rows, most :
        On the cores of a ring, see :class:`sim.backward.sharing.SharedRule`.
    """
    rule = {Sgd: _Sgd, Adam: _Adam}[type(optimizer)](emitter, optimizer, acc)
    if emitter.cores > 1:
        rule = SharedRule(rule, ring, IN_FLIGHT, staging, rows, most)
        parts = rule.split(parts)
    size, under_way = ring.size // IN_FLIGHT, deque()
    for number, part in enumerate(parts):
        while len(under_way) >= IN_FLIGHT:
            _go_on(under_way)
        steps = rule.steps(part, Ring(ring.base + number % IN_FLIGHT * size, size))
        while not next(steps):
            _go_on(under_way)
        _go_on(under_way)
        under_way.append(steps)
    while under_way:
        _go_on(under_way)


def _go_on(under_way):
    """Advances each update in flight by a step."""
    for steps in [*under_way]:
        if next(steps, True) is True:
            under_way.remove(steps)


class _Rule:
    """The update rule of an optimizer.

    Parameters
    ----------
    emitter : StepEmitter
    optimizer : Sgd or Adam
    acc : Ring
    """

    def __init__(self, emitter, optimizer, acc):
        self.emitter, self.decays, self.acc = emitter, bool(optimizer.weight_decay), acc

    def steps(self, part, ring):
        """Yields after each step of the instructions for a part, with these vectors of the unified buffer. The yielded value is
        False, then True once when the part's sums are free, later None."""
        raise NotImplementedError

    def _places(self, part, name):
        """Returns the first vectors of a part in SCRATCH, for each plane under this name."""
        return [place + part.first for place in part.planes.places(name)]

    def _from_halves(self, planes, rows):
        """Returns the fields of sums that start from numbers in two planes."""
        return from_rows(self.emitter.load_halves(planes, [(0, rows)]))

    def _store_halves(self, acc, planes, rows, place):
        """Writes the halves of sums to `place` and following vectors, and to SCRATCH."""
        self.emitter.activate(acc, place, rows, Format.PLANES)
        for index, vector in enumerate(planes):
            self.emitter.store(Region.SCRATCH, vector, rows, place + index * rows)


class _Sgd(_Rule):
    """The update V' = bf16(G + mu V), with weight decay bf16((G + mu V) + decay * upper half of W); W' = W - r V'."""

    def steps(self, part, ring):
        emitter, rows, master = self.emitter, part.rows, self._places(part, MASTER)
        place, (momentum,) = ring.take(rows), self._places(part, "momentum")
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
    """Implements :class:`sim.ir.optimizers.Adam`. M' is read from the unified buffer where the formula has A, its rounded value,
    so that the sums are free for the next part."""

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
        """Multiplies rounded sums by vectors, and writes the products over the vectors."""
        fields = {"rows": rows, "lanes": self.emitter.n, "acc": acc, "operand": place, "buffer": place}
        self.emitter.emit(Opcode.MULTIPLY, fields)

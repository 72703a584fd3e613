"""Proof that programs with the FIFO rule of the datasheet do not deadlock, for programs of a few instructions.

The SMT-LIB text describes any program and any state in which nothing can move: no instruction is dispatched, no tile is loaded,
no pass begins, no STORE ends. It is satisfiable only if a program with the rule can stop in such a state. States and moves follow
the datasheet, under *Programs*. They include states that no execution reaches, which makes the proof stronger.
"""

from .induction import Fact, Word, all_of, any_of, choose, count

__all__ = ["RULES", "deadlock_script"]

_LOAD, _MATMUL, _STORE, _SYNC = range(4)
#: Operations that may wait in the queue of a unit, and other LOAD_WEIGHTS that the rule allows.
_QUEUE = 4
#: The parts of the rule. Without any of them, a program may deadlock.
RULES = ("tiles are loaded first", "no SYNC", "no STORE", "few LOAD_WEIGHTS", "few in flight")


class _Program:
    """A program of any instructions, and a state: how many of them are dispatched, and how far each one is."""

    def __init__(self, length, in_flight, depth):
        self.length, self.in_flight, self.room = length, in_flight, depth + 1
        self.places = range(length)
        self.kinds = [Word(f"kind.{i}", 2) for i in self.places]
        self.sizes = [Word(f"size.{i}", 2) for i in self.places]
        self.moved = [Word(f"moved.{i}", 2) for i in self.places]
        self.dispatched = Word("dispatched", 5)
        self.declarations = [f"(declare-const {word.text} (_ BitVec {word.width}))" for word in (*self.words(), self.dispatched)]
        pairs = [(i, j) for i in self.places for j in self.places if i < j]
        self.declarations += [f"(declare-const meets.{i}.{j} Bool)" for i, j in pairs]

    def words(self):
        return [*self.kinds, *self.sizes, *self.moved]

    def total(self, values, kind, end):
        """Returns the sum of `values` over the instructions of a kind before place `end`."""
        found = count([])
        for i in range(end):
            found = found + choose(self.kinds[i] == kind, values[i], 0)
        return found

    def meets(self, i, j):
        """Returns the fact that a STORE and a LOAD_WEIGHTS access a common location."""
        i, j = min(i, j), max(i, j)
        kinds = (self.kinds[i], self.kinds[j])
        one = any_of((kinds[side] == _STORE) & (kinds[1 - side] == _LOAD) for side in range(2))
        return Fact(f"meets.{i}.{j}") & one

    def ended(self, i):
        return (self.dispatched > i) & ((self.moved[i] == self.sizes[i]) | (self.kinds[i] == _SYNC))

    def waits(self, i):
        """Returns the fact that an earlier instruction of the unit, or one that conflicts, has not ended."""
        return any_of(~self.ended(j) & ((self.kinds[j] == self.kinds[i]) | self.meets(j, i)) for j in range(i))

    def valid(self):
        """Yields the facts of every program and every state."""
        tiles, passes = (self.total(self.moved, kind, self.length) for kind in (_LOAD, _MATMUL))
        yield (self.dispatched <= self.length) & (passes <= tiles) & (tiles <= passes + self.room)
        for i in self.places:
            yield (self.sizes[i] >= 1) & (self.moved[i] <= self.sizes[i])
            yield ((self.kinds[i] == _STORE) | (self.kinds[i] == _SYNC)) >> (self.sizes[i] == 1)
            yield ((self.dispatched <= i) | self.waits(i) | (self.kinds[i] == _SYNC)) >> (self.moved[i] == 0)
            before = all_of(self.ended(j) for j in range(i))
            yield ((self.kinds[i] == _SYNC) & (self.dispatched > i)) >> before

    def rule(self, parts):
        """Yields the facts of the rule, the chosen parts of it."""
        for i in self.places:
            passes = self.total(self.sizes, _MATMUL, i)
            if "tiles are loaded first" in parts:
                loaded = self.total(self.sizes, _LOAD, i)
                yield (self.kinds[i] == _MATMUL) >> (loaded >= passes + self.sizes[i])
            load, sum_ = self.kinds[i] == _LOAD, self.total(self.sizes, _LOAD, i + 1)
            yield load >> (sum_ <= self.total(self.sizes, _MATMUL, self.length) + self.room)  # before HALT
            between = {j: load & (sum_ > self.total(self.sizes, _MATMUL, j) + self.room) for j in range(i + 1, self.length)}
            for j, without_room in between.items():
                if "no SYNC" in parts:
                    yield without_room >> (self.kinds[j] != _SYNC)
                if "no STORE" in parts:
                    yield without_room >> ~any_of(self.meets(j, k) for k in range(i, self.length) if k != j)
            others = count(fact & (self.kinds[j] == _LOAD) for j, fact in between.items())
            if "few LOAD_WEIGHTS" in parts:
                yield others <= _QUEUE
            if "few in flight" in parts:
                yield others <= self.in_flight - 2

    def stuck(self):
        """Yields the facts that nothing moves, though something is left."""
        tiles, passes = (self.total(self.moved, kind, self.length) for kind in (_LOAD, _MATMUL))
        yield any_of(~self.ended(i) for i in self.places)
        flying = count((self.dispatched > i) & ~self.ended(i) for i in self.places)
        for i in self.places:
            can = (self.dispatched > i) & ~self.ended(i) & ~self.waits(i)
            yield ~(can & (self.kinds[i] == _STORE))
            yield (can & (self.kinds[i] == _LOAD)) >> (tiles >= passes + self.room)
            yield (can & (self.kinds[i] == _MATMUL)) >> (passes >= tiles)
            # The first operation of a unit is in progress, the others wait in its queue.
            queued = count((self.dispatched > j) & ~self.ended(j) & (self.kinds[j] == self.kinds[i]) for j in range(i))
            held = (flying >= self.in_flight) | (queued > _QUEUE)
            at_sync = ~all_of(self.ended(j) for j in range(i))
            is_sync = self.kinds[i] == _SYNC
            yield (self.dispatched == i) >> ((is_sync & at_sync) | (~is_sync & held))


def deadlock_script(length, *, in_flight, depth, parts=RULES):
    """Returns SMT-LIB text that is satisfiable only if a program of `length` instructions and HALT can deadlock.

    Parameters
    ----------
    length : int
        LOAD_WEIGHTS and MATMUL of one to three tiles, STORE, and SYNC.
    in_flight, depth : int
        Instructions in flight, and tiles in the weight FIFO.
    parts : sequence of str
        Parts of the rule, from :data:`RULES`, that the program keeps.
    """
    program = _Program(length, in_flight, depth)
    facts = [*program.valid(), *program.rule(parts), *program.stuck()]
    return "\n".join([*program.declarations, *(f"(assert {fact.text})" for fact in facts)])

"""Proofs of scoreboard and dispatcher, for any pair of instructions: no conflict is in flight, none is lost, and waits have no
circle.

`a` and `b` are two arbitrary slots. The proof follows the instructions in them, and compares their footprints by a definition of
its own.
"""

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.control.description import decoded_layout, footprint_layout
from amaranth_tpu.hw.control.dispatcher import Dispatcher, units_of
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import spaces_of

from .induction import Proof, all_of, any_of, count, selected

__all__ = ["DISPATCH"]

_SLOTS, _WIDTH = 4, 2
_ON_BUS = ("load", "weights", "store")


def _field(word, layout, *names):
    """Returns a field of a structure."""
    first = 0
    for name in names:
        first += layout[name].offset
        layout = layout[name].shape
    width = layout if isinstance(layout, int) else getattr(layout, "size", None) or layout.as_shape().width
    return word[first] if width == 1 else word[first : first + width]


class Dispatch(Proof):
    """The proof for a core without (or with) a ring."""

    def __init__(self, *, ring):
        self.config = from_preset("plain", n=2, in_flight=_SLOTS, ring=ring)
        self.units, self.footprint = units_of(self.config), footprint_layout(self.config)
        self.name = "dispatcher and scoreboard" + (", with a ring" if ring else "")

    def make(self):
        return Dispatcher(config=self.config)

    # --- Definitions ----------------------------------------------------------------------------------------------

    def offered(self, s):
        """Returns the footprint of the instruction at the input."""
        decoded = decoded_layout(self.config)
        first = decoded["footprint"].offset
        return s["i__payload"][first : first + self.footprint.size]

    def unit(self, footprint):
        return _field(footprint, self.footprint, "unit")

    def of_unit(self, footprint):
        """Returns a fact for each unit: the footprint belongs to it."""
        return [self.unit(footprint) == Unit[unit.upper()].value for unit in self.units]

    def conflict(self, one, other):
        """Returns the fact that two instructions of different units access a location, and at least one writes it."""
        found = []
        for space in ("host", *spaces_of(self.config)):
            first, last, reads, writes = (
                [_field(word, self.footprint, space, name) for word in (one, other)]
                for name in ("first", "last", "reads", "writes")
            )
            meet = (first[0] <= last[1]) & (first[1] <= last[0])
            if space == "host":
                meet &= _field(one, self.footprint, "region") == _field(other, self.footprint, "region")
            touches = [reads[side] | writes[side] for side in range(2)]
            found.append(meet & touches[0] & touches[1] & (writes[0] | writes[1]))
        return any_of(found) & (self.unit(one) != self.unit(other))

    def kept(self, s, slot):
        """Returns the footprint of the instruction in a slot."""
        return selected([s[f"footprints[{place}]"] for place in range(_SLOTS)], slot)

    @staticmethod
    def bit(word, slot):
        return any_of(word[place] & (slot == place) for place in range(_SLOTS))

    def occupied(self, s, slot):
        return self.bit(s["scoreboard.occupied"], slot)

    def waits(self, s, slot, other):
        row = selected([s[f"scoreboard.waiting__{place}"] for place in range(_SLOTS)], slot)
        return self.bit(row, other)

    def queued(self, s, unit, slot):
        """Returns a fact for each place of a unit's queue: it holds the slot."""
        held = s[f"{unit}_queue.held"]
        return [held[place] & (s[f"{unit}_queue.slot_{place}"] == slot) for place in range(Dispatcher.queue_depth)]

    def taken(self, s, unit, slot):
        """Returns the fact that a unit takes the operation in a slot."""
        return s[f"{unit}__op__valid"] & s[f"{unit}__op__ready"] & (s[f"{unit}__op__payload"][0:_WIDTH] == slot)

    def out(self, s, unit, slot):
        """Returns the fact that the operation in a slot is in a unit's output register."""
        return s[f"{unit}__op__valid"] & (s[f"{unit}__op__payload"][0:_WIDTH] == slot)

    def done(self, s, unit, slot):
        return s[f"{unit}__done"] & (s[f"{unit}__done_slot"] == slot)

    def ended(self, s, slot):
        """Returns the fact that the scoreboard learns the end of the instruction in a slot."""
        at_once = [self.done(s, unit, slot) for unit in self.units if unit not in _ON_BUS]
        return any_of(at_once) | self.ending(s, slot)

    def ending(self, s, slot):
        return any_of(self.bit(s[f"ended_by_{unit}"], slot) for unit in _ON_BUS)

    def accepts(self, s, slot):
        return s["placed__valid"] & (s["placed__slot"] == slot)

    def places(self, s, slot):
        """Returns the number of places before the units that hold the instruction in a slot. An operation leaves its queue a
        cycle after it entered the output register."""
        found = count([])
        for unit in self.units:
            found = found + count(self.queued(s, unit, slot))
            if unit != "matmul":
                found = found + count([self.out(s, unit, slot)]) - count([s[f"{unit}_offered"] & self.out(s, unit, slot)])
        return found

    # --- Specification --------------------------------------------------------------------------------------------

    def ghosts(self):
        """Returns the two slots; for each, if a unit has the instruction; if both conflict, and which is older; and the
        instruction that waits at the input."""

        def with_unit(name):
            def following(s):
                took = any_of(self.taken(s, unit, s[name]) for unit in self.units)
                return (s[f"with_unit_{name}"] | took) & ~any_of(self.done(s, unit, s[name]) for unit in self.units)

            return following

        def conflicts(s):
            a, b = s["a"], s["b"]
            new = self.occupied(s, a) & self.conflict(self.kept(s, a), self.offered(s))
            return ((self.accepts(s, b) & new) | s["conflicts"]) & ~self.ended(s, a)

        def younger(s):
            return (self.accepts(s, s["b"]) & self.occupied(s, s["a"])) | (s["younger"] & ~self.accepts(s, s["a"]))

        return {
            "a": (_WIDTH, None, lambda s: s["a"]),
            "b": (_WIDTH, None, lambda s: s["b"]),
            "with_unit_a": (1, 0, with_unit("a")),
            "with_unit_b": (1, 0, with_unit("b")),
            "conflicts": (1, 0, conflicts),
            "younger": (1, 0, younger),
            "new_b": (1, 0, lambda s: self.accepts(s, s["b"])),
            "was_waiting": (1, 0, lambda s: s["i__valid"] & ~s["i__ready"]),
            "was_halt": (1, 0, lambda s: s["i__payload"][0]),
            "was": (self.footprint.size, 0, self.offered),
        }

    def assume(self, s):
        """Returns the rules of the neighbours: an instruction stays until it is taken, and a unit ends an operation that it has
        taken, once; a MATMUL only if it is not blocked."""
        ends = []
        for name in ("a", "b"):
            done = [self.done(s, unit, s[name]) for unit in self.units]
            ends.append(any_of(done) >> s[f"with_unit_{name}"])
            ends.append(done[[*self.units].index("matmul")] >> ~self.bit(s["interlock__blocked"], s[name]))
        for unit in self.units:
            slot = s[f"{unit}__done_slot"]
            mine = self.bit(s[f"slots_of_{unit}"], slot)
            others = any_of(self.done(s, other, slot) for other in self.units if other != unit)
            ends.append(s[f"{unit}__done"] >> (self.occupied(s, slot) & ~self.ending(s, slot) & mine & ~others))
        offered = (self.offered(s) == s["was"]) & (s["i__payload"][0] == s["was_halt"])
        known = any_of(self.of_unit(self.offered(s))) | (self.unit(self.offered(s)) == Unit.CONTROL.value)
        return [s["was_waiting"] >> (s["i__valid"] & offered), s["i__valid"] >> known, s["a"] != s["b"], *ends]

    def invariant(self, s):
        facts = [*self.slots_invariant(s), *self.scan_invariant(s), *self.input_invariant(s)]
        for unit in self.units:
            held = s[f"{unit}_queue.held"]
            facts.append(all_of(held[place + 1] >> held[place] for place in range(Dispatcher.queue_depth - 1)))
            if unit != "matmul":
                first = s[f"{unit}_queue.slot_0"] == s[f"{unit}__op__payload"][0:_WIDTH]
                facts.append(s[f"{unit}_offered"] >> (s[f"{unit}__op__valid"] & held[0] & first))
        return facts

    def slots_invariant(self, s):
        a, b = s["a"], s["b"]
        blocked = self.bit(s["interlock__blocked"], b)
        waits = any_of(self.waits(s, b, other) for other in range(_SLOTS))
        facts = [
            s["conflicts"] >> self.waits(s, b, a),
            waits >> blocked,
            self.waits(s, b, a) >> (self.occupied(s, a) & self.occupied(s, b) & s["younger"]),
            waits >> ~(self.ending(s, b) | any_of(self.out(s, unit, b) for unit in self.units if unit != "matmul")),
            (waits & s["with_unit_b"]) >> self.bit(s["slots_of_matmul"], b),
        ]
        for name in ("a", "b"):
            slot, with_unit = s[name], s[f"with_unit_{name}"]
            ending = [self.bit(s[f"ended_by_{unit}"], slot) for unit in _ON_BUS]
            there = self.places(s, slot) + count([with_unit]) + count(ending)
            facts.append(there == count([self.occupied(s, slot)]))
            facts.append(any_of(ending) >> self.occupied(s, slot))
            of_unit = self.of_unit(self.kept(s, slot))
            for unit, belongs in zip(self.units, of_unit):
                facts.append(self.occupied(s, slot) >> (self.bit(s[f"slots_of_{unit}"], slot) == belongs))
                here = any_of(self.queued(s, unit, slot))
                facts.append((here if unit == "matmul" else here | self.out(s, unit, slot)) >> belongs)
        for unit in self.units:
            facts += self.order(s, unit)
        facts.append((blocked & self.occupied(s, b)) >> (waits | s["new_b"]))
        return facts

    def order(self, s, unit):
        """Yields the facts that a unit's queue holds `a` before `b` only if `b` is younger."""
        first, second = self.queued(s, unit, s["a"]), self.queued(s, unit, s["b"])
        places = range(len(first))
        yield all_of((first[i] & second[j]) >> s["younger"] for i in places for j in places if i < j)
        if unit != "matmul":
            yield (self.out(s, unit, s["a"]) & any_of(second)) >> s["younger"]

    def scan_invariant(self, s):
        """Returns the facts about the comparison of the instruction at the input with the slot `a`."""
        a, new = s["a"], s["was"]
        spaces = ("host", *spaces_of(self.config))
        flags = any_of(all_of(s[f"{space}_flags"][bit] for bit in range(3)) for space in spaces)
        other = self.kept(s, a)
        clash = self.conflict(other, new)
        own = any_of(belongs & self.bit(s[f"slots_of_{unit}"], a) for unit, belongs in zip(self.units, self.of_unit(new)))
        stages = [
            own,
            self.bit(s["left"], a),
            s["reading"] & (s["read_slot"] == a),
            s["comparing"] & (s["compared_slot"] == a) & (s["other"] == other),
            s["judging"] & (s["judged_slot"] == a) & (clash >> flags),
            clash >> self.bit(s["waits_for"], a),
        ]
        still = (s["left"] != 0) | s["reading"] | s["comparing"] | s["judging"]
        return [
            (~s["idle"] & self.occupied(s, a)) >> any_of([self.unit(new) == Unit.CONTROL.value, *stages]),
            s["compared"] >> (~still | (s["scoreboard.occupied"] == 0)),
            (~s["idle"] & s["clear"]) >> ((s["waits_for"] & s["scoreboard.occupied"]) == 0),
        ]

    def input_invariant(self, s):
        """Returns the facts about the registered conditions for the instruction at the input."""
        of_unit, control = self.of_unit(s["was"]), self.unit(s["was"]) == Unit.CONTROL.value
        full = [s[f"{unit}_queue.held"][Dispatcher.queue_depth - 1] for unit in self.units]
        free = all_of(belongs >> ~held for belongs, held in zip(of_unit, full)) & (s["scoreboard.occupied"] != (1 << _SLOTS) - 1)
        one = (s["scoreboard.occupied"] & (s["scoreboard.occupied"] - 1)[0:_SLOTS]) == 0
        at_end = s["is_sync"] | s["is_halt"]
        ended = s["ended_by_load"] | s["ended_by_weights"] | s["ended_by_store"]
        return [
            s["was_waiting"] >> all_of(s["mine"][place] == belongs for place, belongs in enumerate(of_unit)),
            (~s["idle"] | s["compared"] | at_end) >> s["was_waiting"],
            s["compared"] >> ~s["idle"],
            (s["was_waiting"] & s["room"]) >> (free & ~control & ~self.occupied(s, s["placed__slot"])),
            at_end >> (control & (s["is_halt"] == s["was_halt"]) & (s["is_sync"] == ~s["was_halt"])),
            (at_end & s["alone"]) >> one,
            s["any_late"] == (ended != 0),
            all_of(ended[place] >> s["scoreboard.occupied"][place] for place in range(_SLOTS)),
        ]

    def claims(self, s, t):
        a, b = s["a"], s["b"]
        offered = any_of(self.out(s, unit, b) for unit in self.units if unit != "matmul")
        heads = [
            (
                s[f"{unit}_queue.held"][0]
                & (s[f"{unit}_queue.slot_0"] == b)
                & ~s[f"{unit}__op__valid"]
                & ~self.bit(s["interlock__blocked"], b)
            )
            >> self.out(t, unit, b)
            for unit in self.units
            if unit != "matmul"
        ]
        ends = s["halted"] | (s["i__ready"] & ~s["placed__valid"])
        nothing = (self.places(s, b) == 0) & ~s["with_unit_b"]
        there = self.places(s, b) + count([s["with_unit_b"], self.ending(s, b)])
        return {
            # promise: hazards, scoreboard
            "an operation is offered only if no earlier conflicting instruction is in flight": offered >> ~s["conflicts"],
            # promise: hazards
            "a unit works on it only then; a MATMUL that it has taken before is blocked": (s["with_unit_b"] & s["conflicts"])
            >> (self.bit(s["slots_of_matmul"], b) & self.bit(s["interlock__blocked"], b)),
            "an instruction gets a free slot": self.accepts(s, b) >> ~self.occupied(s, b),
            "an instruction in flight is in one queue, output or unit, once": there == count([self.occupied(s, b)]),
            "an instruction enters only the queue of its unit": all_of(
                (self.out(t, unit, b) | any_of(self.queued(t, unit, b))) >> belongs
                for unit, belongs in zip(self.units, self.of_unit(self.kept(t, b)))
            ),
            # promise: dispatch-order
            "SYNC and HALT pass only if no operation is queued or with a unit": ends >> nothing,
            "an instruction waits only for earlier ones in flight: there is no circle": self.waits(s, b, a)
            >> (self.occupied(s, a) & s["younger"]),
            "it is blocked only while it waits, and in its first cycle": (
                self.bit(s["interlock__blocked"], b) & self.occupied(s, b)
            )
            >> (any_of(self.waits(s, b, other) for other in range(_SLOTS)) | s["new_b"]),
            # promise: unit-order
            "a queue keeps the order of the program": all_of(fact for unit in self.units for fact in self.order(s, unit)),
            # promise: unit-order
            "the first operation of a queue is offered as soon as it is not blocked": all_of(heads),
        }


#: Proofs of the dispatcher, without and with a ring.
DISPATCH = [Dispatch(ring=False), Dispatch(ring=True)]

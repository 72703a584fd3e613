"""The scoreboard of the dependencies between instructions in flight."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """Holds the dependencies between the slots of instructions in flight, as a matrix of bits.

    Parameters
    ----------
    slots : int
        Maximum number of instructions in flight.

    Members
    -------
    allocate : 1, in
        Occupies `slot`, which waits for the slots in `waits_for`.
    slot : slot, in
        The slot to allocate.
    waits_for : slots, in
    clear : 1, in
        With `allocate`: `waits_for` is 0. `clear` may be 0 even if `waits_for` is 0, which blocks the slot for one cycle.
    ended : slots, in
        Slots whose instructions end.
    occupied : slots, out
        One bit per slot: an instruction is in the slot.
    blocked : slots, out
        Bit s: slot s waits for another slot, or was allocated without `clear` in the previous cycle.
    waiting : array of slots, out
        Entry s: the slots that slot s waits for.
    """

    def __init__(self, *, slots):
        self.slots = slots
        super().__init__(
            {
                "allocate": In(1),
                "slot": In(range(slots)),
                "waits_for": In(slots),
                "clear": In(1),
                "ended": In(slots),
                "occupied": Out(slots),
                "blocked": Out(slots),
                "waiting": Out(slots).array(slots),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for s in range(self.slots):
            chosen = self.allocate & (self.slot == s)
            left = self.waiting[s] & ~self.ended
            m.d.sync += [self.waiting[s].eq(left), self.blocked[s].eq(left.any())]
            with m.If(chosen):
                m.d.sync += [
                    self.occupied[s].eq(1),
                    self.waiting[s].eq(self.waits_for & ~self.ended),
                    self.blocked[s].eq(~self.clear),
                ]
            with m.Elif(self.ended[s]):
                m.d.sync += self.occupied[s].eq(0)
        return m

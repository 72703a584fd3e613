"""The scoreboard: which instructions in flight must end before another may begin."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """A matrix of waits between the slots of the instructions in flight.

    A slot that has ended is free, and no other slot waits for it any more.

    Parameters
    ----------
    slots : int
        Instructions in flight.

    Members
    -------
    allocate : 1, in
        Occupies `slot`, and makes it wait for the slots in `waits_for`.
    slot : slot, in
    waits_for : slots, in
    clear : 1, in
        With `allocate`: `waits_for` is 0. It may be 0 in spite of that, which blocks the slot for one cycle.
    ended : slots, in
        The slots that end.
    occupied : slots, out
    blocked : slots, out
        Slot s waits for another slot, or was allocated without `clear` in the cycle before.
    waiting : array of slots, out
        The slots that slot s waits for.
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

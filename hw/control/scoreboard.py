"""The scoreboard: which instructions in flight must end before another may begin."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """A matrix of waits between the slots of the instructions in flight.

    `allocate` occupies `slot` and makes it wait for the slots in `waits_for`; `clear` says that there are none, and may come a
    cycle late. A slot that ends (`ended`, one bit each) is free, and nobody waits for it any more. `blocked[s]` is 1 while slot s
    waits for anyone, and for a cycle after an `allocate` without `clear`.

    Parameters
    ----------
    slots : int
        Instructions in flight.
    """

    def __init__(self, *, slots):
        self.slots = slots
        super().__init__({
            "allocate": In(1), "slot": In(range(slots)), "waits_for": In(slots), "clear": In(1),
            "ended": In(slots),
            "occupied": Out(slots), "blocked": Out(slots), "waiting": Out(slots).array(slots),
        })

    def elaborate(self, platform):
        m = Module()
        for s in range(self.slots):
            chosen = self.allocate & (self.slot == s)
            left = self.waiting[s] & ~self.ended
            m.d.sync += [self.waiting[s].eq(left), self.blocked[s].eq(left.any())]
            with m.If(chosen):
                m.d.sync += [
                    self.occupied[s].eq(1), self.waiting[s].eq(self.waits_for & ~self.ended), self.blocked[s].eq(~self.clear)]
            with m.Elif(self.ended[s]):
                m.d.sync += self.occupied[s].eq(0)
        return m

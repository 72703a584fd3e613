"""A short queue of operations, each given by its slot. Its flags, and the slot of its first operation, are registered."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.checks import check_power_of_two

__all__ = ["OperationQueue"]


class OperationQueue(wiring.Component):
    """Holds the slots of up to `depth` operations in a shift register.

    The ports are as in :class:`amaranth.lib.fifo.SyncFIFO`, except that `w_en` must be 0 while `w_rdy` is 0, and `r_en` must be 0
    while `r_rdy` is 0.

    Parameters
    ----------
    slot : shape
    depth : int
        Number of operations, a power of two, at least 2.

    Members
    -------
    w_en : 1, in
        Adds `w_slot`.
    w_rdy : 1, out
        The queue has room. Registered.
    w_slot : slot, in
    r_en : 1, in
        Removes the first operation.
    r_rdy : 1, out
        The queue holds an operation. Registered.
    r_slot : slot, out
        Slot of the first operation. Registered.
    """

    def __init__(self, *, slot, depth):
        check_power_of_two("depth", depth, 2)
        self.depth = depth
        super().__init__(
            {"w_en": In(1), "w_rdy": Out(1), "w_slot": In(slot), "r_en": In(1), "r_rdy": Out(1), "r_slot": Out(slot)}
        )

    def elaborate(self, platform):
        m = Module()
        # Bit i of `held`: the queue holds more than i operations. A free register loads `w_slot` in every cycle, even while
        # `w_en` is 0.
        held, slots = Signal(self.depth), [Signal.like(self.w_slot, name=f"slot_{i}", reset_less=True) for i in range(self.depth)]
        with m.If(self.w_en & ~self.r_en):
            m.d.sync += held.eq((held << 1) | 1)
        with m.Elif(self.r_en & ~self.w_en):
            m.d.sync += held.eq(held >> 1)
        for i in range(self.depth):
            last = i == self.depth - 1
            above = self.w_slot if last else Mux(held[i + 1], slots[i + 1], self.w_slot)
            m.d.sync += slots[i].eq(Mux(self.r_en, above, Mux(held[i], slots[i], self.w_slot)))
        m.d.comb += [self.w_rdy.eq(~held[-1]), self.r_rdy.eq(held[0]), self.r_slot.eq(slots[0])]
        return m

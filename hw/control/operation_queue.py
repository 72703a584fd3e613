"""A short queue of operations. Its flags, and the slot of its first operation, are registered."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.checks import check_power_of_two
from ..lib.short_fifo import ShortFifo

__all__ = ["OperationQueue"]


class OperationQueue(wiring.Component):
    """Holds up to `depth` operations: their payloads in a :class:`.ShortFifo`, their slots in a shift register.

    The ports are as in :class:`amaranth.lib.fifo.SyncFIFO`, except that `w_en` must be 0 while `w_rdy` is 0, and `r_en` must be 0
    while `r_rdy` is 0.

    Parameters
    ----------
    payload : layout
    slot : shape
    depth : int
        Number of operations, a power of two, at least 2.

    Members
    -------
    w_en : 1, in
        Adds `w_payload` and `w_slot`.
    w_rdy : 1, out
        The queue has room. Registered.
    w_payload : payload, in
    w_slot : slot, in
    r_en : 1, in
        Removes the first operation.
    r_rdy : 1, out
        The queue holds an operation. Registered.
    r_payload : payload, out
        Payload of the first operation.
    r_slot : slot, out
        Slot of the first operation. Registered.
    """

    def __init__(self, *, payload, slot, depth):
        check_power_of_two("depth", depth, 2)
        self.depth = depth
        super().__init__(
            {
                "w_en": In(1),
                "w_rdy": Out(1),
                "w_payload": In(payload),
                "w_slot": In(slot),
                "r_en": In(1),
                "r_rdy": Out(1),
                "r_payload": Out(payload),
                "r_slot": Out(slot),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.payloads = payloads = ShortFifo(shape=self.w_payload.shape(), depth=self.depth)
        # A free register loads `w_slot` in every cycle, even while `w_en` is 0. `held` marks the registers that hold slots.
        held, slots = payloads.held, [Signal.like(self.w_slot, name=f"slot_{i}", reset_less=True) for i in range(self.depth)]
        for i in range(self.depth):
            last = i == self.depth - 1
            above = self.w_slot if last else Mux(held[i + 1], slots[i + 1], self.w_slot)
            m.d.sync += slots[i].eq(Mux(self.r_en, above, Mux(held[i], slots[i], self.w_slot)))

        m.d.comb += [
            payloads.w_en.eq(self.w_en),
            payloads.w_data.eq(self.w_payload),
            payloads.r_en.eq(self.r_en),
            self.r_payload.eq(payloads.r_data),
            self.w_rdy.eq(payloads.w_rdy),
            self.r_rdy.eq(payloads.r_rdy),
            self.r_slot.eq(slots[0]),
        ]
        return m

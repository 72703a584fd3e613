"""The ID of the core's bus transactions, another one after each reset."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["TransactionId"]


class TransactionId(wiring.Component):
    """Tells answers to what was asked before a reset of the core alone from answers to what is asked now.

    After a reset, `id` is other than that of what was `asked` last; `settled` says so, three cycles after the reset. However many
    resets come in a row, it stays the same until something is asked.

    What outlives a reset is in a memory, and whatever that comes up as is right. It becomes known even in a simulation in which
    nothing has an initial value: a write whose enable is unknown does not happen there, where an unknown choice between
    two values would stay unknown.

    Members
    -------
    asked : 1, in
        A request is on the bus.
    id : 1, out
        The ID of requests, and of the answers that belong to them.
    settled : 1, out
        `id` is right.
    """

    def __init__(self):
        super().__init__({"asked": In(1), "id": Out(1), "settled": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.kept = kept = Memory(shape=1, depth=2, init=[])
        last, next_, write = kept.read_port(domain="comb"), kept.read_port(domain="comb"), kept.write_port()
        # Step 0 sets `next_` to 1, step 1 to 0 if `last` is 1; step 2 makes it the last with the first request.
        step = Signal(2)
        m.d.comb += [
            last.addr.eq(0),
            next_.addr.eq(1),
            write.addr.eq(~step[1]),
            write.data.eq(~step[0] & (~step[1] | next_.data)),
            write.en.eq((step == 0) | ((step == 1) & last.data) | ((step == 2) & self.asked)),
        ]
        m.d.sync += [self.id.eq(~next_.data), self.settled.eq(step[1])]  # 0 after the first reset of a simulation
        with m.If(~step[1] | (~step[0] & self.asked)):
            m.d.sync += step.eq(step + 1)
        return m

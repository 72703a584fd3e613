"""The ID of the core's bus transactions, which changes with each reset."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out, Signature

__all__ = ["TransactionId", "id_port"]


def id_port():
    """Returns the signature of the transaction ID, as seen from its generator.

    Members
    -------
    id : 1, out
        The ID of requests, and of the responses to them.
    settled : 1, out
        `id` is valid.
    """
    return Signature({"id": Out(1), "settled": Out(1)})


class TransactionId(wiring.Component):
    """The generator of the transaction ID. The ID separates requests from before a reset of the core alone from later requests.

    After a reset, `o.id` differs from the ID of the last request (`asked`). `o.settled` rises three cycles after the reset. If
    further resets come before the next request, `o.id` stays the same.

    The state that survives a reset is in a memory, and any initial contents are correct. The state becomes known even in a
    simulation without initial values. There, a write with an unknown enable does not happen, but a multiplexer with an unknown
    select would stay unknown.

    Members
    -------
    asked : 1, in
        A request is on the bus.
    o : ID port, out
        See :func:`id_port`.
    """

    def __init__(self):
        super().__init__({"asked": In(1), "o": Out(id_port())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.kept = kept = Memory(shape=1, depth=2, init=[])
        last, next_, write = kept.read_port(domain="comb"), kept.read_port(domain="comb"), kept.write_port()
        # Step 0 sets `next_` to 1. Step 1 sets it to 0 if `last` is 1. Step 2 copies it to `last` with the first request.
        step = Signal(2)
        m.d.comb += [
            last.addr.eq(0),
            next_.addr.eq(1),
            write.addr.eq(~step[1]),
            write.data.eq(~step[0] & (~step[1] | next_.data)),
            write.en.eq((step == 0) | ((step == 1) & last.data) | ((step == 2) & self.asked)),
        ]
        m.d.sync += [self.o.id.eq(~next_.data), self.o.settled.eq(step[1])]  # 0 after the first reset of a simulation
        with m.If(~step[1] | (~step[0] & self.asked)):
            m.d.sync += step.eq(step + 1)
        return m

"""One binary32 lane of the ring unit. It adds a received word and the core's own word."""

from amaranth import EnableInserter, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.adder import Adder

__all__ = ["RingLane"]


class RingLane(wiring.Component):
    """An adder lane. Its result is the sum of the received and the own word, or one of the two words unchanged, after `latency`
    cycles.

    Parameters
    ----------
    latency : int
        Pipeline stages. Cycles without `advance` do not count.

    Members
    -------
    own, received : 32, in
        Operands from the core's unified buffer, and from the link.
    take_own : 1, in
        Passes `own` rather than `received` where nothing is added.
    advance : 1, in
        Enables all pipeline stages.
    added : 1, in
        Selects the sum as the result at `o`.
    o : 32, out
    """

    def __init__(self, *, latency):
        self.latency = latency
        super().__init__({"own": In(32), "received": In(32), "take_own": In(1), "advance": In(1), "added": In(1), "o": Out(32)})

    def elaborate(self, platform):
        m = Module()
        adder = Adder(latency=self.latency)
        m.submodules.adder = EnableInserter(self.advance)(adder)
        m.d.comb += [adder.a.as_value().eq(self.received), adder.b.as_value().eq(self.own)]
        unchanged = Mux(self.take_own, self.own, self.received)
        for stage in range(self.latency):
            following = Signal(32, name=f"unchanged_{stage}", reset_less=True)
            with m.If(self.advance):
                m.d.sync += following.eq(unchanged)
            unchanged = following
        m.d.comb += self.o.eq(Mux(self.added, adder.o.as_value(), unchanged))
        return m

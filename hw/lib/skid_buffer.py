"""A skid buffer: two registers that cut the combinational paths of `valid` and `ready`."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["SkidBuffer"]


class SkidBuffer(wiring.Component):
    """Registers a stream; cuts the combinational paths of `valid` and of `ready`.

    Throughput: one payload a cycle. Latency: one cycle. The buffer holds up to two payloads.

    Parameters
    ----------
    payload : layout

    Members
    -------
    i : stream of payload, in
    o : stream of payload, out
    """

    def __init__(self, *, payload):
        super().__init__({"i": In(stream.Signature(payload)), "o": Out(stream.Signature(payload))})

    def elaborate(self, platform):
        m = Module()
        second, waiting = Signal.like(self.i.payload), Signal()
        free = Signal(init=1)  # equals ~waiting, with a low fan-out
        m.d.comb += self.i.ready.eq(free)
        with m.If(~waiting):
            m.d.sync += second.eq(self.i.payload)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.payload.eq(Mux(waiting, second, self.i.payload)),
                self.o.valid.eq(waiting | self.i.valid),
                waiting.eq(0),
                free.eq(1),
            ]
        with m.Else():
            m.d.sync += [waiting.eq(waiting | self.i.valid), free.eq(free & ~self.i.valid)]
        return m

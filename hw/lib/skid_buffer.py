"""A skid buffer: two registers that cut both paths of a stream."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["SkidBuffer"]


class SkidBuffer(wiring.Component):
    """A register on a stream that cuts the path of `valid` and the path of `ready`.

    It holds up to two payloads and moves one a cycle; a payload is at `o` one cycle after it was taken at `i`.

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
        m.d.comb += self.i.ready.eq(~waiting)
        with m.If(~waiting):
            m.d.sync += second.eq(self.i.payload)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.payload.eq(Mux(waiting, second, self.i.payload)),
                self.o.valid.eq(waiting | self.i.valid),
                waiting.eq(0),
            ]
        with m.Else():
            m.d.sync += waiting.eq(waiting | self.i.valid)
        return m

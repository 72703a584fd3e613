"""Which row of a window is the largest."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import Binary32

__all__ = ["IndexLane"]

#: The number where RELU leaves nothing of a window.
_NOTHING = 255


class IndexLane(wiring.Component):
    """One lane of the format INDEX: the number of the window's largest row so far.

    Members
    -------
    take : 1, in
        The row at hand is the largest so far.
    number : 16, in
        Its number, from 0 on.
    value : 32, in
        Its sum: binary32, no subnormal.
    relu : 1, in
        A sum that is not above 0 has the number 255.
    o : 16, out
        From the cycle after `take` on.
    """

    def __init__(self):
        super().__init__({"take": In(1), "number": In(16), "value": In(Binary32), "relu": In(1), "o": Out(16)})

    def elaborate(self, platform):
        m = Module()
        index, nothing = Signal(16, reset_less=True), Signal(reset_less=True)
        positive = ~self.value.sign & self.value.exponent.any()
        with m.If(self.take):
            m.d.sync += [index.eq(self.number), nothing.eq(self.relu & ~positive)]
        m.d.comb += self.o.eq(Mux(nothing, _NOTHING, index))
        return m

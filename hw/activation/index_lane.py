"""The index of the largest row of a window, for one lane."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import Binary32

__all__ = ["IndexLane"]

#: The index if RELU makes the whole window 0.
_NOTHING = 255


class IndexLane(wiring.Component):
    """One lane of the format INDEX. It holds the index of the largest row of a window so far.

    Members
    -------
    take : 1, in
        The current row is the largest so far.
    number : 16, in
        Index of the current row, from 0.
    value : 32, in
        Sum of the current row: binary32, no subnormal.
    relu : 1, in
        A sum that is not above 0 gets the index 255.
    o : 16, out
        The index, valid from the cycle after `take`.
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

"""The larger of two binary32."""

from amaranth import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Maximum"]


class Maximum(wiring.Component):
    """The larger of two binary32, in the order of sign and magnitude; combinational.

    +0 is larger than -0, and the NaN 0x7FC00000, the only one that sums have, is larger than all.
    """

    def __init__(self):
        super().__init__({"a": In(32), "b": In(32), "o": Out(32)})

    def elaborate(self, platform):
        m = Module()
        # As unsigned integers all negative numbers lie above the others, and in reverse.
        m.d.comb += self.o.eq(Mux((self.a > self.b) ^ (self.a[31] | self.b[31]), self.a, self.b))
        return m

"""Which of two binary32 is larger."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Comparator"]


class Comparator(wiring.Component):
    """Whether `a` is larger than `b`, both binary32, in the order of sign and magnitude; combinational.

    +0 is larger than -0, and the NaN 0x7FC00000, the only one that sums have, is larger than all others. `o` is undefined
    where `a` equals `b`.

    Members
    -------
    a, b : 32, in
        binary32.
    o : 1, out
    """

    def __init__(self):
        super().__init__({"a": In(32), "b": In(32), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        # As unsigned integers all negative numbers lie above the others, and in reverse.
        m.d.comb += self.o.eq((self.a > self.b) ^ (self.a[31] | self.b[31]))
        return m

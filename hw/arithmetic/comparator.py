"""Which of two binary32 is larger."""

from amaranth import Cat, Const, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Comparator"]


class Comparator(wiring.Component):
    """Whether `a` is larger than `b`, both binary32, in the order of sign and magnitude; combinational.

    +0 is larger than -0, and the NaN 0x7FC00000, the only one that sums have, is larger than all others. `o` is undefined
    where `a` equals `b`, and 0 if `strict`.

    Parameters
    ----------
    strict : bool

    Members
    -------
    a, b : 32, in
        binary32.
    o : 1, out
    """

    def __init__(self, *, strict=False):
        self.strict = strict
        super().__init__({"a": In(32), "b": In(32), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        if self.strict:
            self._compare_strictly(m)
            return m
        # As unsigned integers all negative numbers lie above the others, and in reverse.
        m.d.comb += self.o.eq((self.a > self.b) ^ (self.a[31] | self.b[31]))
        return m

    def _compare_strictly(self, m):
        # One comparison of magnitudes: b < a, or b <= a if they are negative, of which the opposite is the answer then. As "less"
        # it is a carry chain alone; for "greater" Yosys adds a test for 0.
        a, b, negative = self.a, self.b, self.a[31]
        below = Cat(Const(0, 1), b[:31]) < Cat(negative, a[:31])
        m.d.comb += self.o.eq(Mux(a[31] ^ b[31], b[31], below ^ negative))

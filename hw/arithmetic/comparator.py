"""A comparator of two binary32 numbers."""

from amaranth import Cat, Const, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Comparator"]


class Comparator(wiring.Component):
    """Compares two binary32 numbers: `o = a > b`. Combinational.

    The order is by sign and magnitude: +0 is larger than -0, and the NaN 0x7FC00000 is larger than every number. Sums
    contain no other NaN. For equal operands, `o` is 0 if `strict`, else undefined.

    Parameters
    ----------
    strict : bool
        False if the result for equal operands does not matter, which saves logic.

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
        # As unsigned integers, negative numbers are above positive ones, in reverse order.
        m.d.comb += self.o.eq((self.a > self.b) ^ (self.a[31] | self.b[31]))
        return m

    def _compare_strictly(self, m):
        # One comparison of magnitudes: b < a for positive operands, and the inverse of b <= a for negative ones. Yosys maps
        # "less" to one carry chain; "greater" costs an extra test for 0.
        a, b, negative = self.a, self.b, self.a[31]
        below = Cat(Const(0, 1), b[:31]) < Cat(negative, a[:31])
        m.d.comb += self.o.eq(Mux(a[31] ^ b[31], b[31], below ^ negative))

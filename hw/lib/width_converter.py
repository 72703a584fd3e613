"""A converter of narrow words to wide words."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["WidthConverter"]


class WidthConverter(wiring.Component):
    """Concatenates `ratio` words of `width` bits, the first one lowest.

    The wide word is valid in the cycle of its last narrow word. There is no backpressure. With `ratio` 1 it is a wire.

    Parameters
    ----------
    width : int
        Bits of a narrow word.
    ratio : int
        Narrow words in a wide word.

    Members
    -------
    i_valid : 1, in
    i : width, in
        Narrow word.
    last : 1, out
        The next narrow word completes a wide word.
    o_valid : 1, out
    o : ratio width, out
        Wide word.
    """

    def __init__(self, *, width, ratio):
        self.ratio = ratio
        super().__init__({"i_valid": In(1), "i": In(width), "last": Out(1), "o_valid": Out(1), "o": Out(width * ratio)})

    def elaborate(self, platform):
        m = Module()
        if self.ratio == 1:
            m.d.comb += [self.last.eq(1), self.o_valid.eq(self.i_valid), self.o.eq(self.i)]
            return m
        earlier = Signal(len(self.o) - len(self.i))
        count = Signal(range(self.ratio))
        m.d.comb += [
            self.last.eq(count == self.ratio - 1),
            self.o.eq(Cat(earlier, self.i)),
            self.o_valid.eq(self.i_valid & self.last),
        ]
        with m.If(self.i_valid):
            m.d.sync += [earlier.eq(self.o[len(self.i) :]), count.eq(count + 1)]
            with m.If(self.o_valid):
                m.d.sync += count.eq(0)
        return m

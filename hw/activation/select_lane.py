"""Which lanes SELECT keeps: a condition on an operand."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import Bfloat16

__all__ = ["SelectLane"]


class SelectLane(wiring.Component):
    """One lane of SELECT. `keep` says, from the cycle after `take` on, whether the operand that was there then fulfils the
    condition, and is 1 from the cycle after `keep_all` on; `take` comes before `keep_all`.

    An operand is a bfloat16 of any bits. Above 0 are positive numbers and the infinity, but neither a NaN nor a subnormal, which
    counts as 0 here as everywhere.

    Members
    -------
    take : 1, in
    operand : 16, in
        bfloat16, straight from a memory: what is done to it before a register is short.
    equal : 1, in
        The condition: that the operand's low byte is `number`; else, that it is above 0.
    number : 8, in
    keep_all : 1, in
    keep : 1, out
    """

    def __init__(self):
        super().__init__(
            {"take": In(1), "operand": In(Bfloat16), "equal": In(1), "number": In(8), "keep_all": In(1), "keep": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()
        x, number = self.operand, Signal(8)
        # `same`: the fraction is the number's, or 0. Each of them is two LUTs behind the memory, and what is long follows.
        names = "same", "same_top", "positive", "finite", "always"
        same, same_top, positive, finite, always = (Signal(name=name, reset_less=True) for name in names)
        m.d.comb += number.eq(Mux(self.equal, self.number, 0))
        with m.If(self.take):
            m.d.sync += [
                always.eq(0),
                same.eq(x.fraction == number[:7]),
                same_top.eq(self.equal & (x.exponent[0] == number[7])),
                positive.eq(~self.equal & ~x.sign & x.exponent.any()),
                finite.eq(~x.exponent.all()),
            ]
        with m.Elif(self.keep_all):
            m.d.sync += always.eq(1)
        m.d.comb += self.keep.eq(always | (same_top & same) | (positive & (finite | same)))
        return m

"""The condition of SELECT on an operand, for one lane."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import Bfloat16

__all__ = ["SelectLane"]


class SelectLane(wiring.Component):
    """One lane of SELECT: the condition on an operand.

    After a cycle with `take`, `keep` is 1 if the operand fulfils the condition, and 0 otherwise. After a cycle with `keep_all`,
    `keep` is 1. `take` has priority over `keep_all`.

    An operand is a bfloat16 of any bits. Positive numbers and +infinity are above 0. A NaN is not above 0. A subnormal counts as
    0.

    Members
    -------
    take : 1, in
    operand : 16, in
        bfloat16, directly from a memory: the path from here to a register is short.
    equal : 1, in
        The condition. 1: the low byte of the operand equals `number`. 0: the operand is above 0.
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
        # `same`: the fraction equals the low bits of `number`, or 0. Each register is two LUTs behind the memory; the longer
        # logic follows the registers.
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

"""One lane of the last pass: the product of an exponential and a reciprocal, or of a difference and a factor, as bfloat16."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import EXPONENT_MAX, QUIET_NAN
from ..spec.softmax import RESULT_EXPONENT
from .layouts import FACTOR, QUOTIENT

__all__ = ["ResultLane"]


class ResultLane(wiring.Component):
    """Multiplies an exponential by the reciprocal of its row's sum, and rounds the product to bfloat16.

    Throughput: one element a cycle. The result appears one cycle after `power`, in the cycle of `keep`.

    Parameters
    ----------
    normalize : bool
        True for numbers of either sign and of any size, also 0, by a FACTOR.

    Members
    -------
    power : 16, in
    halvings : 8, in
    negative : 1, in
        Sign of the number. Only with `normalize`.
    by : QUOTIENT, in
        With `normalize`, a FACTOR.
    keep : 1, in
        1: the lane has an element. 0: the result is 0.
    result : 16, out
    """

    def __init__(self, *, normalize=False):
        self.normalize = normalize
        ports = {"negative": In(1), "by": In(FACTOR)} if normalize else {"by": In(QUOTIENT)}
        super().__init__({"power": In(16), "halvings": In(8), **ports, "keep": In(1), "result": Out(16)})

    def elaborate(self, platform):
        m = Module()
        if self.normalize:
            self._of_any_size(m)
            return m
        # The product is 0.25 to 1, so it is normalised by at most one place. It is not exact, so ties do not matter.
        product, exponent, next_exponent = Signal(32, reset_less=True), Signal(10, reset_less=True), Signal(10)
        above, at_zero, below, infinite = (
            Signal(name=name, reset_less=True) for name in ("above", "at_zero", "below", "infinite")
        )
        m.d.comb += next_exponent.eq(RESULT_EXPONENT - self.by.places - self.halvings)
        m.d.sync += [
            product.eq(self.power * self.by.quotient),
            exponent.eq(next_exponent),
            above.eq(~next_exponent[-1] & next_exponent.any()),
            at_zero.eq(next_exponent == 0),
            below.eq(next_exponent.all()),  # -1
            infinite.eq(self.by.infinite),
        ]
        upper = product[31]
        significant = Mux(upper, product[23:31], product[22:30])
        rounded, carry = Signal(17), significant.all()
        m.d.comb += rounded.eq((Cat(significant, exponent) + Cat(Const(1, 8), upper))[1:])
        # `normal`: the exponent, with `upper` and `carry`, is at least 1. If `carry` alone makes it 0, the bits are 0 anyway.
        normal = above | (at_zero & (upper | carry)) | (below & carry)
        with m.If(self.keep):
            m.d.comb += self.result.eq(Mux(infinite, QUIET_NAN >> 16, Mux(normal, rounded[:15], 0)))
        return m

    def _of_any_size(self, m):
        product, exponent = Signal(32, reset_less=True), Signal(signed(12), reset_less=True)
        negative, some, infinite = (Signal(name=name, reset_less=True) for name in ("negative", "some", "infinite"))
        m.d.sync += [
            product.eq(self.power * self.by.quotient),
            exponent.eq(self.by.exponent - self.halvings),
            negative.eq(self.negative),
            some.eq(self.power[-1]),
            infinite.eq(self.by.infinite),
        ]
        upper = product[31]
        significant = Mux(upper, product[23:31], product[22:30])
        rounded = Signal(signed(20))
        m.d.comb += rounded.eq(Cat(significant, exponent).as_signed() + Cat(Const(1, 8), upper))
        place = rounded[8:].as_signed()  # exponent of the result
        with m.If(self.keep):
            m.d.comb += self.result.eq(
                Mux(
                    infinite,
                    QUIET_NAN >> 16,
                    Cat(Mux(~some | (place < 1), 0, Mux(place >= EXPONENT_MAX, EXPONENT_MAX << 7, rounded[1:16])), negative),
                )
            )

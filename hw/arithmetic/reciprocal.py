"""A serial divider for the reciprocal of a sum of exponentials, one bit a cycle."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Reciprocal"]


class Reciprocal(wiring.Component):
    """Computes 1 / `total`, rounded down, as `quotient * 2**-(15 + places)`.

    `places` is the number of bits of `total`; the top bit of the quotient is set. The unit divides 2**(15 + places) - 1 by
    `total` with restoring division. `total` must have at least 16 significant bits and stay constant until `done`. The
    division begins in the cycle after `start` and takes `places` cycles. The quotient is held until the next start.

    Parameters
    ----------
    width : int
        Bits of `total`.
    ahead : int
        Cycles from `soon` to `done`, 0 to 15.

    Members
    -------
    total : width, in
        Sum of exponentials.
    start : 1, in
        Begins a division.
    quotient : 16, out
    places : 7, out
        Number of bits of `total`.
    done : 1, out
        The quotient is valid.
    soon : 1, out
        The quotient is valid, or will be in `ahead` cycles.
    """

    def __init__(self, *, width, ahead):
        if not 16 <= width <= 64:
            raise ValueError(f"width must be 16 to 64, not {width!r}")
        if not 0 <= ahead <= 15:
            raise ValueError(f"ahead must be 0 to 15, not {ahead!r}")
        self.width = width
        self.ahead = ahead
        super().__init__(
            {"total": In(width), "start": In(1), "quotient": Out(16), "places": Out(7), "done": Out(1), "soon": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()

        # The dividend is all ones, and its first 15 bits are less than any total.
        remainder = Signal(self.width, reset_less=True)
        quotient, places = Signal(16, reset_less=True), Signal(7, reset_less=True)
        shifted = Cat(Const(1, 1), remainder)
        rest = Signal(self.width + 2)
        fits = ~rest[-1]
        m.d.comb += [
            rest.eq(shifted - self.total),
            self.quotient.eq(quotient),
            self.places.eq(places),
            self.done.eq(quotient[15]),
            self.soon.eq(quotient[15 - self.ahead :].any()),
        ]
        with m.If(self.start):
            m.d.sync += [remainder.eq((1 << 15) - 1), quotient.eq(0), places.eq(0)]
        with m.Elif(~self.done):
            m.d.sync += [remainder.eq(Mux(fits, rest, shifted)), quotient.eq(Cat(fits, quotient)), places.eq(places + 1)]
        return m

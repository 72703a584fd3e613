"""A serial divider for the mean of a row, one bit a cycle."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["MeanDivider"]


class MeanDivider(wiring.Component):
    """Divides `total` by `divisor`, rounded down, with restoring division.

    The division begins in the cycle after `start` and takes `bits` + 1 cycles. The mean is held until the next start.

    Parameters
    ----------
    width : int
        Bits of `total`.
    bits : int
        Bits of a mean. `total` must be below `divisor * 2**bits`.

    Members
    -------
    total : width, in
    divisor : width - bits, in
        Constant during a division.
    start : 1, in
        Begins a division of the next cycle's `total`.
    mean : bits, out
    done : 1, out
        The mean is valid.
    """

    def __init__(self, *, width, bits):
        self.bits = bits
        ports = {"total": In(width), "divisor": In(width - bits), "start": In(1), "mean": Out(bits), "done": Out(1)}
        super().__init__(ports)

    def elaborate(self, platform):
        m = Module()
        # The quotient shifts in behind the dividend.
        remainder, mean = Signal(len(self.divisor), reset_less=True), Signal(self.bits, reset_less=True)
        began, left, rest = Signal(), Signal(range(self.bits + 1)), Signal(len(self.divisor) + 2)
        shifted = Cat(mean[-1], remainder)
        fits = ~rest[-1]
        m.d.comb += [rest.eq(shifted - self.divisor), self.mean.eq(mean), self.done.eq(left == 0)]
        m.d.sync += began.eq(self.start)
        with m.If(self.start):
            m.d.sync += left.eq(self.bits)
        with m.Elif(began):
            m.d.sync += Cat(mean, remainder).eq(self.total)
        with m.Elif(~self.done):
            m.d.sync += [remainder.eq(Mux(fits, rest, shifted)), mean.eq(Cat(fits, mean)), left.eq(left - 1)]
        return m

"""The bfloat16 multiplier of a cell, with an exact binary32 product."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.pipeline import pipeline_step
from .float_formats import EXPONENT_MAX, Bfloat16, Binary32

__all__ = ["LEADS", "Multiplier"]

#: Supported latencies, in cycles.
LEADS = range(4)

#: Steps with a pipeline register behind them, by latency.
_REGISTERED = {0: (), 1: ("product",), 2: ("product", "output"), 3: ("operand", "product", "output")}


class Multiplier(wiring.Component):
    """Multiplies two bfloat16 numbers into a binary32 product: `o = ftz(rne(x * w))`.

    Subnormal operands and results are replaced by zeros of the same sign. Overflow gives an infinity, and every NaN is
    0x7FC00000. Rounding is not needed: a product has 16 significant bits, so the low 8 bits of its fraction are 0.

    Throughput: one product a cycle. The product appears `lead` cycles after its operands. There is no flow control and no
    reset: the output is undefined in the first `lead` cycles.

    Parameters
    ----------
    lead : int
        Number of pipeline registers, 0 to 3. The first is after the multiplication of the significands, the second at the output,
        the third at the operands. With three, a hard multiplier has registers on both sides.

    Members
    -------
    x : Bfloat16, in
    w : Bfloat16, in
    o : Binary32, out
    """

    def __init__(self, *, lead):
        if not isinstance(lead, int) or lead not in LEADS:
            raise ValueError(f"lead must be an integer from 0 to 3, not {lead!r}")
        self.lead = lead
        super().__init__({"x": In(Bfloat16), "w": In(Bfloat16), "o": Out(Binary32)})

    def elaborate(self, platform):
        m = Module()

        def step(name, **values):
            """Gives names to the signals between two steps. Adds a pipeline register there if `lead` requires one."""
            return pipeline_step(m, "sync" if name in _REGISTERED[self.lead] else "comb", name, values)

        s = step("operand", x=self.x, w=self.w)
        x, w = s.x, s.w

        # An exponent field of 0 means zero, for any fraction.
        x_zero, w_zero = x.exponent == 0, w.exponent == 0
        x_max, w_max = x.exponent == EXPONENT_MAX, w.exponent == EXPONENT_MAX
        x_nan, w_nan = x_max & x.fraction.any(), w_max & w.fraction.any()
        special = x_max | w_max

        # In parallel with the multiplication, the exponent is computed for both forms of the product, 1.* and 1*.*. It is
        # `low` or `high` minus 128, so the upper two bits show an overflow or underflow.
        one = Const(1, 1)
        exponents = Signal(10)
        low, high = exponents[1:], Signal(8)
        m.d.comb += [exponents.eq(Cat(one, x.exponent) + Cat(one, w.exponent)), high.eq(low + 1)]
        under, over = low[7:] == 0b00, low[7:] == 0b11
        under_low = (low[7:] == 0b01) & ~low[:7].any()
        over_high = (low[7:] == 0b10) & low[1:7].all()
        zero = under | ~special & (x_zero | w_zero)
        infinite = over | over_high & low[0] | special
        s = step(
            "product",
            significand=Cat(x.fraction, one) * Cat(w.fraction, one),
            low=Mux(zero, 0, low[:8] ^ 0x80),
            high=Mux(zero, 0, high ^ 0x80),
            zero=zero,
            under_low=under_low,
            over_high=over_high,
            infinite=infinite,
            sign=x.sign ^ w.sign,
            nan=x_nan | w_nan | (x_max & w_zero) | (w_max & x_zero),
        )

        # In zeros, infinities and the NaN, all fraction bits but the top one are 0.
        carry = s.significand[15]
        clear = s.zero | s.infinite | Mux(carry, s.over_high, s.under_low)
        fraction = Mux(carry, s.significand[:15], s.significand[:14] << 1)
        s = step(
            "output",
            fraction=Mux(clear, Cat(Const(0, 14), s.nan), fraction),
            exponent=Mux(carry, s.high, s.low) | s.infinite.replicate(8),
            sign=s.sign & ~s.nan,
        )
        m.d.comb += [self.o.fraction.eq(Cat(Const(0, 8), s.fraction)), self.o.exponent.eq(s.exponent), self.o.sign.eq(s.sign)]
        return m

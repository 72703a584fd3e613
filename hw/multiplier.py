"""The multiplier of a cell: bfloat16 times bfloat16, exact in binary32."""

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .float_formats import Bfloat16, Binary32, EXPONENT_MAX

__all__ = ["Multiplier"]


class Multiplier(wiring.Component):
    """Multiplies two bfloat16 into a binary32.

    `o` is `ftz(rne(x * w))`: subnormal operands and results count as zeros of the same sign, overflow gives an
    infinity, and every NaN is 0x7FC00000. There is nothing to round: a product has 16 significant bits, so the low
    8 bits of its fraction are always 0.

    One product a cycle, `lead` cycles after its operands. There is no flow control and no reset: what comes out in the
    first `lead` cycles means nothing.

    Parameters
    ----------
    lead : int
        Registers, 0 to 3: first behind the whole, then behind the significands' multiplier, then in front of it, so that
        a hard multiplier has its registers on both sides.

    Members
    -------
    x : Bfloat16, in
    w : Bfloat16, in
    o : Binary32, out
    """

    def __init__(self, *, lead):
        if not isinstance(lead, int) or not 0 <= lead <= 3:
            raise ValueError(f"lead must be an integer from 0 to 3, not {lead!r}")
        self.lead = lead
        super().__init__({
            "x": In(Bfloat16),
            "w": In(Bfloat16),
            "o": Out(Binary32),
        })

    def elaborate(self, platform):
        m = Module()

        def after(registered, name, value):
            signal = Signal.like(value, name=name, reset_less=True)
            m.d["sync" if registered else "comb"] += signal.eq(value)
            return signal

        x = after(self.lead >= 3, "operand_x", self.x)
        w = after(self.lead >= 3, "operand_w", self.w)

        # A zero exponent field means zero, whatever the fraction says.
        x_zero, w_zero = x.exponent == 0, w.exponent == 0
        x_max, w_max = x.exponent == EXPONENT_MAX, w.exponent == EXPONENT_MAX
        x_nan, w_nan = x_max & x.fraction.any(), w_max & w.fraction.any()

        def product(name, value):
            return after(self.lead >= 2, f"product_{name}", value)

        significand = product("significand", Cat(x.fraction, Const(1, 1)) * Cat(w.fraction, Const(1, 1)))
        exponents = product("exponents", x.exponent + w.exponent)
        sign = product("sign", x.sign ^ w.sign)
        zero = product("zero", x_zero | w_zero)
        special = product("special", x_max | w_max)
        nan = product("nan", x_nan | w_nan | (x_max & w_zero) | (w_max & x_zero))

        # The significand is 1.* or 1*.*: take 127 from the exponents, or 126.
        carry = significand[15]
        fraction = Signal(15)
        exponent = Signal(10)
        m.d.comb += [
            fraction.eq(significand[:15]),
            exponent.eq(exponents + Cat(~carry, carry, Const(0b11100000, 8))),
        ]
        with m.If(~carry):
            m.d.comb += fraction.eq(significand[:14] << 1)

        negative = exponent[9]
        small = Signal()
        large = Signal()
        m.d.comb += [
            small.eq(zero | negative | (exponent[:9] == 0)),
            large.eq(special | ~negative & (exponent[8] | exponent[:8].all())),
        ]

        # Everything but the fraction's top bit is 0 in zeros, infinities and the NaN alike.
        o = Signal(Binary32, reset_less=True)
        to_o = m.d["sync" if self.lead >= 1 else "comb"]
        to_o += [
            o.sign.eq(sign & ~nan),
            o.exponent.eq((exponent[:8] | large.replicate(8)) & (large | ~small).replicate(8)),
        ]
        with m.If(large | small):
            to_o += o.fraction.eq(Cat(Const(0, 22), nan))
        with m.Else():
            to_o += o.fraction.eq(Cat(Const(0, 8), fraction))
        m.d.comb += self.o.eq(o)
        return m

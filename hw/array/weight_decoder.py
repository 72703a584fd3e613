"""The decoder of one weight: from an OCP MX element and its scale to bfloat16."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.float_formats import QUIET_NAN
from ..spec.codes import WeightFormat

__all__ = ["WeightDecoder"]

#: The NaN of weights and results, as bfloat16.
NAN = QUIET_NAN >> 16


class WeightDecoder(wiring.Component):
    """Decodes one weight per cycle: its value is the value of the element, times 2 ** (`scale` - 127).

    Each product within the range of bfloat16 is exact. Larger products become infinite. Products below the least normal number
    become zeros of the same sign. A scale of 255 and the NaNs of MXFP8 give the NaN 0x7FC0.

    Attributes
    ----------
    latency : int
        Cycles from the inputs to `o`.

    Members
    -------
    format : WeightFormat, in
        Not BFLOAT16, whose results are undefined.
    code : 8, in
        The element; bits above the format's bits are ignored.
    scale : 8, in
    o : 16, out
    """

    latency = 2

    def __init__(self):
        super().__init__({"format": In(WeightFormat), "code": In(8), "scale": In(8), "o": Out(16)})

    def elaborate(self, platform):
        m = Module()
        code, is_format = self.code, {one: self.format == one for one in WeightFormat}
        is_fp8, is_fp4, is_integer = (is_format[one] for one in (WeightFormat.MXFP8, WeightFormat.MXFP4, WeightFormat.MXINT8))

        # First cycle: the value is (-1)**negative * significand * 2**(base - 7) * 2**(scale - 128).
        exponent, fraction = Signal(4), Signal(3)
        significand, base = Signal(8, reset_less=True), Signal(signed(5), reset_less=True)
        negative, is_nan, scale = Signal(reset_less=True), Signal(reset_less=True), Signal(8, reset_less=True)
        m.d.comb += [
            exponent.eq(Mux(is_fp8, code[3:7], Mux(is_fp4, code[1:3], code[3:5]))),
            fraction.eq(Mux(is_fp4, Cat(Const(0, 2), code[0]), code[:3])),
        ]
        least = exponent == 0  # a subnormal number has the exponent 1
        m.d.sync += [
            significand.eq(Mux(is_integer, Mux(code[7], -code, code), Cat(Const(0, 4), fraction, ~least))),
            base.eq(Mux(is_integer, 1, (exponent | least) - Mux(is_fp8, 7, 1))),
            negative.eq(Mux(is_fp4, code[3], Mux(is_format[WeightFormat.MXFP6], code[5], code[7]))),
            is_nan.eq((self.scale == 255) | (is_fp8 & code[:7].all())),
            scale.eq(self.scale),
        ]

        # Second cycle: the significand is normalized. `zeros` counts its leading zeros.
        shifted, moved = significand, []
        for places in (4, 2, 1):
            moves, following = ~shifted[8 - places :].any(), Signal(8, name=f"shifted_{places}")
            m.d.comb += following.eq(Mux(moves, shifted << places, shifted))
            shifted, moved = following, [moves, *moved]
        zeros, less, power = Cat(moved), Signal(signed(6)), Signal(signed(10))
        m.d.comb += [less.eq(base - zeros), power.eq(scale + less)]
        nothing, infinite = ~shifted[7] | power[9] | ~power[:9].any(), power[8] | power[:8].all()
        magnitude = Mux(nothing, 0, Mux(infinite, 0x7F80, Cat(shifted[:7], power[:8])))
        o = Signal(16, reset_less=True)
        m.d.sync += o.eq(Mux(is_nan, NAN, Cat(magnitude[:15], negative)))
        m.d.comb += self.o.eq(o)
        return m

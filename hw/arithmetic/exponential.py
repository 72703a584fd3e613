"""A unit for the exponential exp(-d) of a fixed-point number, with three small tables and two multipliers."""

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.softmax import (
    DISTANCE_BITS,
    DISTANCE_FRACTION,
    EXPONENT_FRACTION,
    FINE_POWERS,
    FINEST_LOSSES,
    LOG2_E,
    LOG2_E_FRACTION,
    POWERS,
)

__all__ = ["Exponential"]


class Exponential(wiring.Component):
    """Computes exp(-d) as `power * 2**-halvings`.

    Throughput: one number a cycle, without flow control. The result appears `latency` cycles after `d`. With C = `LOG2_E`
    and unsigned integers:

    * `t = (d * C + 2**16) >> 17`, `halvings = t >> 12`, `f = t[11:8]`, `g = t[7:4]`, `h = t[3:0]`,
    * `power = POWERS[f] * (FINE_POWERS[g] - FINEST_LOSSES[h]) >> 16`.

    Members
    -------
    d : 19, in
        Distance, 12 fraction bits.
    beyond : 1, in
        The distance does not fit `d`: the result has at least 128 halvings.
    power : 16, out
        0.5 to 1, 16 fraction bits; the top bit is always 1.
    halvings : 8, out
        Exponent of the factor `2**-halvings`.
    """

    latency = 4

    def __init__(self):
        super().__init__({"d": In(DISTANCE_BITS), "beyond": In(1), "power": Out(16), "halvings": Out(8)})

    def elaborate(self, platform):
        m = Module()

        # The product leaves out the lowest bit of d, so that both factors have 18 bits; the rounding adds it.
        product, low, beyond = Signal(36, reset_less=True), Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += [product.eq(self.d[1:] * LOG2_E), low.eq(self.d[0]), beyond.eq(self.beyond)]

        shift = DISTANCE_FRACTION + LOG2_E_FRACTION - EXPONENT_FRACTION
        half = 1 << shift - 1
        rounded = Signal(37)
        t = Signal(20, reset_less=True)
        m.d.comb += rounded.eq(Cat(Const(0, 1), product) + Mux(low, half + LOG2_E, half))
        m.d.sync += t.eq(Cat(rounded[shift : shift + 19], rounded[-1] | beyond))

        coarse, fine = Signal(16, reset_less=True), Signal(12, reset_less=True)
        power, halvings = Signal(16, reset_less=True), [Signal(8, name=f"halvings_{i}", reset_less=True) for i in range(2)]
        whole = Signal(32)
        m.d.comb += whole.eq(coarse * Cat(fine, Const(0xF, 4)))
        m.d.sync += [
            coarse.eq(Array(POWERS)[t[8:12]]),
            fine.eq(Array(value & 0xFFF for value in FINE_POWERS)[t[4:8]] - Array(FINEST_LOSSES)[t[0:4]]),
            halvings[0].eq(t[12:]),
            power.eq(whole[16:]),
            halvings[1].eq(halvings[0]),
        ]
        m.d.comb += [self.power.eq(power), self.halvings.eq(halvings[1])]
        return m

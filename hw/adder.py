"""The adder of a cell: binary32 plus binary32."""

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .float_formats import Binary32, EXPONENT_MAX

__all__ = ["Adder"]

#: The steps that end in a register, by latency; the output has one always.
_REGISTERED = {
    1: (),
    2: ("normalize_16",),
    3: ("align_4", "normalize_8"),
    4: ("align_8", "add", "normalize_4"),
    5: ("align_8", "add", "normalize_8", "normalize_1"),
}


class Adder(wiring.Component):
    """Adds two binary32.

    `o` is `ftz(rne(a + b))`: subnormal operands and results count as zeros of the same sign, rounding is to nearest, ties
    to even, overflow gives an infinity, an exact difference of 0 is +0, and every NaN is 0x7FC00000.

    One sum a cycle, `latency` cycles after its operands. There is no flow control and no reset: what comes out in the
    first `latency` cycles means nothing.

    Parameters
    ----------
    latency : int
        Registers, 1 to 5. The last one holds the output; the others split the work evenly.
    canonical_b : bool
        Promises that the only NaN that comes in at `b` is 0x7FC00000, as a :class:`.Multiplier` does; saves logic. (That
        the low bits of a product's fraction are constant needs no promise: synthesis sees it.)

    Members
    -------
    a : Binary32, in
    b : Binary32, in
    o : Binary32, out
    """

    def __init__(self, *, latency, canonical_b=False):
        if latency not in _REGISTERED:
            raise ValueError(f"latency must be an integer from 1 to 5, not {latency!r}")
        self.latency = latency
        self.canonical_b = bool(canonical_b)
        super().__init__({
            "a": In(Binary32),
            "b": In(Binary32),
            "o": Out(Binary32),
        })

    def elaborate(self, platform):
        m = Module()

        # One path: compare exponents, align the smaller operand, add, normalise, round. Four things keep it small.
        #
        # * Only exponents are compared. So a difference can come out negative, but only with equal exponents, where it is
        #   exact. Its magnitude is its complement plus one unit in the last place; complemented, with ones shifted in
        #   from below, it looks to the rounder like a number that has to be rounded up, which adds the unit for free.
        # * The distance between exponents, when negative, is its complement plus one; the one is a shift of the operand
        #   by a bit, which the exchange of operands does in passing.
        # * Zeros are never made from subnormals bit by bit: a zero that is the smaller operand is shifted out whole (the
        #   sticky bit that this leaves is too small to change a rounding to nearest), and a zero that is the larger one
        #   means that the sum is zero.
        # * The normaliser finds and removes leading zeros in the same steps, and the exponent is corrected by the
        #   carry chain that rounds.

        def step(name, **values):
            """Names what a step of the work hands to the next, behind a register if the latency asks for one."""
            signals = {}
            for key, value in values.items():
                signals[key] = Signal.like(value, name=f"{name}_{key}", reset_less=True)
                m.d["sync" if name in _REGISTERED[self.latency] else "comb"] += signals[key].eq(value)
            return SimpleNamespace(**signals)

        # ---- compare exponents, and exchange the operands so that the first has the larger one

        a, b = self.a, self.b
        distance = Signal(9)
        m.d.comb += distance.eq(a.exponent - b.exponent)
        swap = distance[8]
        a_zero, b_zero = a.exponent == 0, b.exponent == 0
        a_max, b_max = a.exponent == EXPONENT_MAX, b.exponent == EXPONENT_MAX
        a_nan = a_max & a.fraction.any()
        b_nan = b_max & (b.fraction[22] if self.canonical_b else b.fraction.any())
        subtract = a.sign ^ b.sign
        smaller_zero = Mux(swap, a_zero, b_zero)
        # From 26 places on nothing is left but the sticky bit.
        far = (distance[5:8] ^ swap.replicate(3)).any() | smaller_zero
        one, nought = Const(1, 1), Const(0, 1)

        flags = {
            "exponent": Mux(swap, b.exponent, a.exponent),
            "subtract": subtract,
            "sign": Mux(swap, b.sign, a.sign) & ~(a_zero & b_zero & subtract),
            "zero": a_zero & b_zero,
            "special": a_max | b_max,
            "nan": a_nan | b_nan | (a_max & b_max & subtract),
        }
        s = step("compare", **flags,
                 larger=Mux(swap, b.fraction, a.fraction),
                 # two more places below the significand: guard and round
                 smaller=Mux(swap, Cat(nought, a.fraction, one, nought), Cat(nought, nought, b.fraction, one)),
                 shift=(distance[:5] ^ swap.replicate(5)) | far.replicate(5),
                 sticky=nought)

        def flags_of(s):
            return {name: getattr(s, name) for name in flags}

        # ---- align the smaller one

        for bit in reversed(range(5)):
            places = 1 << bit
            shift = s.shift[bit]
            s = step(f"align_{places}", **flags_of(s), larger=s.larger, shift=s.shift[:bit],
                     smaller=Mux(shift, s.smaller >> places, s.smaller),
                     sticky=s.sticky | (shift & s.smaller[:places].any()))

        # ---- add or subtract; what is below the sticky bit borrows one from above it

        total = Signal(28)
        m.d.comb += total.eq(Cat(one, nought, nought, s.larger, one)
                             + Cat(s.subtract & ~s.sticky, s.smaller ^ s.subtract.replicate(26)))
        carry = total[27]
        negative = s.subtract & ~carry
        s = step("add", **flags_of(s), sticky=s.sticky, complement=negative, zeros=Const(0, 0),
                 total=Cat(total[1:27], carry & ~s.subtract))
        s.total = s.total ^ Cat(s.complement.replicate(26), nought)

        # ---- normalise: the leading one moves to bit 26

        for bit in reversed(range(5)):
            places = 1 << bit
            empty = ~s.total[27 - places:].any()
            s = step(f"normalize_{places}", **flags_of(s), sticky=s.sticky, complement=s.complement,
                     total=Mux(empty, Cat(s.complement.replicate(places), s.total[:-places]), s.total),
                     zeros=Cat(empty, s.zeros))

        # ---- round, in one addition with the correction of the exponent, 1 - zeros

        cancelled = ~s.total[26]
        round_up = s.total[2] & (s.total[3] | s.total[1] | s.total[0] | s.sticky)
        zeros = s.zeros
        correction = Cat(~zeros[0], zeros[1], zeros[2] ^ zeros[1], zeros[3] ^ zeros[1:3].any(),
                         zeros[4] ^ zeros[1:4].any(), zeros[1:].any().replicate(4))
        rounded = Signal(33)
        m.d.comb += rounded.eq(Cat(one, s.total[3:26], s.exponent, nought)
                               + Cat(round_up, Const(0, 23), correction))
        fraction, exponent, below = rounded[1:24], rounded[24:32], rounded[32]

        flush = Signal()
        clear = Signal()
        m.d.comb += [
            flush.eq(s.zero | cancelled | below),
            clear.eq(s.special | flush | (exponent == 0) | (exponent == EXPONENT_MAX)),
        ]
        o = Signal(Binary32, reset_less=True)
        m.d.sync += [
            o.sign.eq((s.sign ^ s.complement) & ~cancelled & ~s.nan),
            o.exponent.eq((exponent & (~flush).replicate(8)) | s.special.replicate(8)),
        ]
        with m.If(clear):
            m.d.sync += o.fraction.eq(Cat(Const(0, 22), s.nan))
        with m.Else():
            m.d.sync += o.fraction.eq(fraction)
        m.d.comb += self.o.eq(o)
        return m

"""The binary32 adder of a cell."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.pipeline import pipeline_step
from .float_formats import EXPONENT_MAX, Binary32

__all__ = ["Adder", "LATENCIES"]

#: Supported latencies, in cycles.
LATENCIES = range(1, 7)

#: Steps with a pipeline register behind them, by latency. The output always has a register.
_REGISTERED = {
    1: (),
    2: ("count",),
    3: ("align_4", "normalize_16"),
    4: ("align_8", "add", "normalize_4"),
    5: ("compare", "align_1", "count", "normalize_2"),
    6: ("compare", "align_2", "add", "normalize_16", "normalize_1"),
}

#: Alignment step that clears operands too small to affect the sum.
_FAR = 4


class Adder(wiring.Component):
    """Adds two binary32 numbers: `o = ftz(rne(a + b))`.

    Subnormal operands and results are replaced by zeros of the same sign. Rounding is to nearest, ties to even. Overflow
    gives an infinity, an exact difference of 0 is +0, and every NaN is 0x7FC00000.

    Throughput: one sum a cycle. The sum appears `latency` cycles after its operands. There is no flow control and no reset:
    the output is undefined in the first `latency` cycles.

    Parameters
    ----------
    latency : int
        Number of pipeline registers, 1 to 6. The last one holds the output; the others divide the path evenly.
    canonical_b : bool
        True to assume that `b` is never a NaN other than 0x7FC00000, which saves logic. The products of a :class:`.Multiplier`
        fulfil this. Synthesis finds by itself that the low bits of a product's fraction are constant.

    Members
    -------
    a : Binary32, in
    b : Binary32, in
    o : Binary32, out
    """

    def __init__(self, *, latency, canonical_b=False):
        if not isinstance(latency, int) or latency not in LATENCIES:
            raise ValueError(f"latency must be an integer from 1 to 6, not {latency!r}")
        self.latency = latency
        self.canonical_b = bool(canonical_b)
        super().__init__({"a": In(Binary32), "b": In(Binary32), "o": Out(Binary32)})

    def elaborate(self, platform):
        m = Module()

        # Single path: compare exponents, align the smaller operand, add, normalise, round. Six techniques keep it small
        # and fast.
        #
        # * Only exponents are compared, not fractions. A difference can therefore be negative, but only with equal
        #   exponents, where it is exact. Its magnitude is its complement plus one unit in the last place. The complement,
        #   with ones shifted in from below, always rounds up, so the rounder adds that unit for free.
        # * A negative exponent distance is its complement plus one. The swap of the operands shifts by one bit, which
        #   replaces the addition.
        # * An operand too small to affect the sum is cleared. A sum with a zero, an infinity or a NaN is then the other
        #   operand, with the right exponent.
        # * Leading zeros of eight, sixteen and twenty-four places are counted in parallel, before the first shift.
        # * Rounding is decided before normalisation: a sum shifted left by more than two places is exact.
        # * One carry chain rounds and corrects the exponent.

        def step(name, **values):
            """Gives names to the signals between two steps. Adds a pipeline register there if `latency` requires one."""
            return pipeline_step(m, "sync" if name in _REGISTERED[self.latency] else "comb", name, values)

        one, zero = Const(1, 1), Const(0, 1)

        # ---- compare exponents, and swap the operands so that the first has the larger exponent

        a, b = self.a, self.b
        distance = Signal(9)
        m.d.comb += distance.eq(a.exponent - b.exponent)
        swap = distance[8]
        a_zero, b_zero = a.exponent == 0, b.exponent == 0
        a_max, b_max = a.exponent == EXPONENT_MAX, b.exponent == EXPONENT_MAX
        a_nan = a_max & a.fraction.any()
        b_nan = b_max & (b.fraction[22] if self.canonical_b else b.fraction.any())
        subtract = a.sign ^ b.sign
        flags = {
            "exponent": Mux(swap, b.exponent, a.exponent),
            "subtract": subtract,
            "sign": Mux(swap, b.sign, a.sign) & ~(a_zero & b_zero & subtract),
            "special": a_max | b_max,
            "nan": a_nan | b_nan | (a_max & b_max & subtract),
        }
        s = step(
            "compare",
            **flags,
            larger=Mux(swap, b.fraction, a.fraction),
            # two more bits below the significand: guard and round
            smaller=Mux(swap, Cat(zero, a.fraction, one, zero), Cat(zero, zero, b.fraction, one)),
            shift=distance[:5] ^ swap.replicate(5),
            # a shift by 32 or more clears the operand
            far=(distance[5:8] ^ swap.replicate(3)).any() | Mux(swap, a_zero, b_zero) | a_max | b_max,
            sticky=zero,
        )

        def flags_of(s):
            return {name: getattr(s, name) for name in flags}

        # ---- align the smaller operand, and complement it for a subtraction

        for bit in reversed(range(5)):
            places = 1 << bit
            shift = s.shift[bit]
            aligned = Mux(shift, s.smaller >> places, s.smaller)
            if places == _FAR:
                aligned = Mux(s.far, 0, aligned)
            if places == 1:
                aligned = aligned ^ s.subtract.replicate(26)
            s = step(
                f"align_{places}",
                **flags_of(s),
                larger=s.larger,
                shift=s.shift[:bit],
                smaller=aligned,
                far=zero if places <= _FAR else s.far,
                sticky=s.sticky | (shift & s.smaller[:places].any()),
            )

        # ---- add or subtract. In a subtraction, nonzero bits below the sticky bit borrow one. A sum can carry into bit 26;
        # the top bit of a difference is its sign.

        total = Signal(28)
        m.d.comb += total.eq(Cat(one, zero, zero, s.larger, one, zero) + Cat(s.subtract & ~s.sticky, s.smaller, s.subtract))
        s = step("add", **flags_of(s), sticky=s.sticky, total=total[1:])

        # ---- count leading zeros: per group of eight bits and per upper half of a group

        t, complement = s.total, s.subtract & s.total[26]

        def equal(*bits):
            """Returns 1 if all bits are equal. The bits above the leading one of a difference repeat its sign."""
            bits = Cat(bits)
            return bits.all() | ~bits.any()

        top = s.subtract & equal(t[24], t[25], t[26])
        # The leading one gives the last place of the result. If the leading one is below bit 24, bit 0 is 0. A negative
        # difference, whose sign is at bit 26, is always rounded up.
        round_up = Mux(
            t[26],
            s.subtract | t[2] & (t[3] | t[1] | t[0] | s.sticky),
            Mux(t[25], t[1] & (t[2] | t[0] | s.sticky), t[0] & (t[1] | s.sticky)),
        )
        s = step(
            "count",
            **flags_of(s),
            total=t,
            complement=complement,
            round_up=round_up,
            overflow=(s.exponent == EXPONENT_MAX - 1) & t[26] & ~s.subtract,
            empty_0=top & equal(*t[21:25]) & equal(*t[19:22]),
            empty_1=equal(*t[16:20]) & equal(*t[13:17]) & equal(*t[11:14]),
            empty_2=equal(*t[8:12]) & equal(*t[5:9]) & equal(*t[3:6]),
            half_0=top & equal(*t[23:25]),
            half_1=equal(*t[15:20]),
            half_2=equal(*t[7:12]),
        )

        # ---- normalise: shift the leading one to bit 26; a complemented sum shifts in ones

        s16 = s.empty_0 & s.empty_1
        s8 = s.empty_0 & (~s.empty_1 | s.empty_2)
        s = step(
            "normalize_16",
            **flags_of(s),
            complement=s.complement,
            round_up=s.round_up,
            overflow=s.overflow,
            total=Mux(s16, s.total[:11] << 16, s.total),
            zeros=Cat(s8, s16),
            four=Mux(s8, ~s16 & s.half_1, Mux(s16, s.half_2, s.half_0)),
        )

        def carried(s):
            return {**flags_of(s), **{name: getattr(s, name) for name in ("complement", "round_up", "overflow")}}

        def moved(s, places):
            return Cat(s.complement.replicate(places), s.total[:-places])

        s = step(
            "normalize_8",
            **carried(s),
            four=s.four,
            zeros=s.zeros,
            total=Mux(s.zeros[0], s.total[:19] << 8, s.total) ^ s.complement.replicate(27),
        )
        s = step(
            "normalize_4",
            **carried(s),
            zeros=Cat(s.four, s.zeros),
            total=Mux(s.four, moved(s, 4), s.total),
            two_0=~s.four & ~s.total[25:27].any(),
            two_1=s.four & ~s.total[21:23].any(),
        )
        two = s.two_0 | s.two_1
        s = step("normalize_2", **carried(s), zeros=Cat(two, s.zeros), total=Mux(two, moved(s, 2), s.total))
        last = ~s.total[26]
        s = step("normalize_1", **carried(s), zeros=Cat(last, s.zeros), total=Mux(last, moved(s, 1), s.total))

        # ---- round and correct the exponent by 1 - zeros, in one addition

        zeros = s.zeros
        correction = Cat(
            ~zeros[0],
            zeros[1],
            zeros[2] ^ zeros[1],
            zeros[3] ^ zeros[1:3].any(),
            zeros[4] ^ zeros[1:4].any(),
            zeros[1:].any().replicate(3),
        )
        rounded = Signal(32)
        m.d.comb += rounded.eq(Cat(one, s.total[3:26], s.exponent) + Cat(s.round_up, Const(0, 23), correction))
        cancelled = ~s.total[26]
        s = step(
            "round",
            fraction=rounded[1:24],
            exponent=rounded[24:],
            sign=(s.sign ^ s.complement) & ~cancelled & ~s.nan,
            nan=s.nan,
            cancelled=cancelled,
            small=(s.exponent[:5] < zeros) & ~s.exponent[5:].any(),
            whole=s.special | s.overflow,
        )

        # ---- select: infinities and the NaN have their exponent already; zeros and subnormals get an exponent of 0. One small
        # result is normal: the complement of all ones rounds to the least normal number, with exponent 1 and fraction 0.

        o = Signal(Binary32, reset_less=True)
        m.d.sync += [o.sign.eq(s.sign), o.exponent[0].eq(s.exponent[0] & ~(s.cancelled | s.small & s.exponent[7]))]
        with m.If(s.small | s.cancelled):
            m.d.sync += o.exponent[1:].eq(0)
        with m.Else():
            m.d.sync += o.exponent[1:].eq(s.exponent[1:])
        with m.If(s.small | s.whole):
            m.d.sync += o.fraction.eq(Cat(Const(0, 22), s.nan))
        with m.Else():
            m.d.sync += o.fraction.eq(s.fraction)
        m.d.comb += self.o.eq(o)
        return m

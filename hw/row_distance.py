"""How far the numbers of a row are below its maximum: binary32 in, fixed point out."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .exponential import DISTANCE_BITS, DISTANCE_FRACTION
from .float_formats import EXPONENT_BIAS, Binary32

__all__ = ["RowDistance"]

#: The exponent field of a number whose last place is that of a distance.
_FIXED = EXPONENT_BIAS + 23 - DISTANCE_FRACTION


class RowDistance(wiring.Component):
    """`max(x) - x`, exact but for the rounding of x to a place that all numbers of a row share.

    One number a cycle, `latency` cycles later; no flow control. First every number of a row passes with `search`, the first of
    them with `first` as well; then `place` comes twice, with x the maximum, which stands at `maximum` two cycles after the
    last search; then the numbers pass whose distances are wanted. A new search may begin at once behind them, or among them.

    The common last place is that of a distance, 2**-12, or half the maximum's if that is more; halves are rounded away from 0.
    Distances that do not fit come out as the largest that does. x is a sum: no subnormal, and only one NaN, which counts as
    larger than all.

    Members
    -------
    x : Binary32, in
    search, first, place : 1, in
    maximum : Binary32, out
    infinite : 1, out
        The maximum in use, since `place`, is an infinity or NaN; distances mean nothing.
    d : 19, out
        Distance, 12 fraction bits.
    """

    latency = 4

    def __init__(self):
        super().__init__({
            "x": In(Binary32), "search": In(1), "first": In(1), "place": In(1),
            "maximum": Out(Binary32), "infinite": Out(1), "d": Out(DISTANCE_BITS),
        })

    def elaborate(self, platform):
        m = Module()
        x, maximum = self.x, Signal(Binary32, reset_less=True)
        m.d.comb += self.maximum.eq(maximum)

        # The maximum. An equal number may replace it.
        larger = Signal()
        exceeds = Cat(x.fraction, x.exponent) > Cat(maximum.fraction, maximum.exponent)
        m.d.comb += larger.eq(Mux(x.sign == maximum.sign, x.sign ^ exceeds, maximum.sign))
        with m.If(self.search & (self.first | larger)):
            m.d.sync += maximum.eq(x)

        # How far x is to be moved to the right, from three places further left than its own: two for numbers that are larger
        # than the maximum (and negative, both), and one more to round. Of the two `place`, the first sets the common place,
        # and the second is moved there.
        common, infinite = Signal(8, reset_less=True), Signal(reset_less=True)
        m.d.comb += self.infinite.eq(infinite)
        with m.If(self.place):
            m.d.sync += [
                common.eq(Mux(maximum.exponent > _FIXED, maximum.exponent - 1, _FIXED)),
                infinite.eq(maximum.exponent.all()),
            ]
        right = Signal(10)
        m.d.comb += right.eq(common + 2 - x.exponent)
        moves = Signal(5, reset_less=True)
        significand = Signal(24, reset_less=True)
        moved_place, moved_beyond = Signal(reset_less=True), Signal(reset_less=True)
        subtract = Signal(reset_less=True)
        m.d.sync += [
            moves.eq(right), moved_place.eq(self.place), moved_beyond.eq(right[9]),
            # The maximum is added to 0, the others are subtracted from it.
            subtract.eq(x.sign == self.place),
        ]
        with m.If(right[5:].any()):
            m.d.sync += significand.eq(0)
        with m.Else():
            m.d.sync += significand.eq(Cat(x.fraction, Const(1, 1)))

        moved = Cat(Const(0, 3), significand)
        for bit in reversed(range(5)):
            moved = Mux(moves[bit], moved >> (1 << bit), moved)[:27]
        aligned = Signal(27, reset_less=True)
        borrow, aligned_place, aligned_beyond = Signal(reset_less=True), Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            aligned.eq(moved ^ subtract.replicate(27)),
            borrow.eq(subtract), aligned_place.eq(moved_place), aligned_beyond.eq(moved_beyond),
        ]

        # Rounding adds the lowest bit, or subtracts it.
        base, difference = Signal(28, reset_less=True), Signal(28)
        m.d.comb += difference.eq((Cat(Const(1, 1), base) + Cat(aligned, borrow.replicate(2)))[1:])
        far, distance = Signal(reset_less=True), Signal(27, reset_less=True)
        m.d.sync += [far.eq(aligned_beyond), distance.eq(difference)]
        left = Signal(8, reset_less=True)
        with m.If(aligned_place & moved_place):
            m.d.sync += base.eq(0)
        with m.Elif(aligned_place):
            m.d.sync += [base.eq(difference), left.eq(common - _FIXED)]

        # From the common place to that of a distance.
        scaled, overflow = distance[:DISTANCE_BITS], far | distance[DISTANCE_BITS:].any()
        for bit in reversed(range(5)):
            places = 1 << bit
            overflow = overflow | left[bit] & scaled[-places:].any()
            scaled = Mux(left[bit], Cat(Const(0, places), scaled), scaled)[:DISTANCE_BITS]
        overflow = overflow | left[5:].any() & distance.any()
        d = Signal(DISTANCE_BITS, reset_less=True)
        with m.If(overflow):
            m.d.sync += d.eq((1 << DISTANCE_BITS) - 1)
        with m.Else():
            m.d.sync += d.eq(scaled)
        m.d.comb += self.d.eq(d)
        return m

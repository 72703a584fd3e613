"""How far the numbers of a row are below its maximum: binary32 in, fixed point out."""

from amaranth import Cat, Const, EnableInserter, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..spec.softmax import DISTANCE_BITS, DISTANCE_FRACTION
from .float_formats import EXPONENT_BIAS, Binary32

__all__ = ["RowDistance"]

#: The exponent field of a number whose last place is that of a distance.
_FIXED = EXPONENT_BIAS + 23 - DISTANCE_FRACTION


class RowDistance(wiring.Component):
    """`max(x) - x`, exact but for the rounding of x to a place that all numbers of a row share.

    One number a cycle, `latency` cycles later; everything stands still in cycles without `advance`. First every number of a row
    passes with `search`, the first of them with `first` as well; then `place` comes twice, the second time with x the maximum,
    which stands at `maximum` a cycle after the last search; then the numbers pass, with `measure`, whose distances are wanted. A
    new search may follow at once.

    The common last place is that of a distance, 2**-12, or half the maximum's if that is more; halves are rounded away from 0.
    x is a sum: no subnormal, and only one NaN, which counts as larger than all.

    Members
    -------
    x : Binary32, in
    search, first, place, measure : 1, in
    advance : 1, in
        Must be 0 while `busy` is 1, which happens at distances from a maximum of 8,192 or more, one cycle for each
        binade that it is beyond.
    busy : 1, out
    busy_next : 1, out
        What `busy` will be.
    maximum : Binary32, out
    infinite : 1, out
        The maximum in use, since `place`, is an infinity or NaN; distances mean nothing.
    d : 19, out
        Distance, 12 fraction bits.
    beyond : 1, out
        The distance does not fit `d`.
    """

    latency = 3

    def __init__(self):
        super().__init__(
            {
                "x": In(Binary32),
                "search": In(1),
                "first": In(1),
                "place": In(1),
                "measure": In(1),
                "advance": In(1),
                "busy": Out(1),
                "busy_next": Out(1),
                "maximum": Out(Binary32),
                "infinite": Out(1),
                "d": Out(DISTANCE_BITS),
                "beyond": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        moving = Module()  # what `advance` holds
        m.submodules.moving = EnableInserter(self.advance)(moving)
        x, maximum = self.x, Signal(Binary32, reset_less=True)
        m.d.comb += self.maximum.eq(maximum)

        # The maximum. An equal number may replace it.
        larger = Signal()
        below = Cat(maximum.fraction, maximum.exponent) - Cat(x.fraction, x.exponent)
        m.d.comb += larger.eq(Mux(x.sign == maximum.sign, x.sign ^ below[-1], maximum.sign))
        with moving.If(self.search & (self.first | larger)):
            moving.d.sync += maximum.eq(x)

        # How far x is to be moved to the right, from three places further left than its own: two for numbers that are larger
        # than the maximum (and negative, both), and one more to round. Of the two `place`, the first sets the common place,
        # and the second is moved there.
        common, infinite = Signal(8, reset_less=True), Signal(reset_less=True)
        m.d.comb += self.infinite.eq(infinite)
        with moving.If(self.place):
            moving.d.sync += [
                common.eq(Mux(maximum.exponent > _FIXED, maximum.exponent - 1, _FIXED)),
                infinite.eq(maximum.exponent.all()),
            ]
        right = Signal(10)
        m.d.comb += right.eq(common + 2 - x.exponent)
        moves, significand = Signal(5, reset_less=True), Signal(24, reset_less=True)
        flags = data.StructLayout({"place": 1, "measure": 1, "subtract": 1, "beyond": 1})
        moved_flags, flags = Signal(flags, reset_less=True), Signal(flags, reset_less=True)
        moving.d.sync += [
            moves.eq(right),
            # The maximum is added to 0, the others are subtracted from it.
            moved_flags.eq(Cat(self.place, self.measure, x.sign == self.place, right[9])),
            flags.eq(moved_flags),
        ]
        with moving.If(right[5:].any()):
            moving.d.sync += significand.eq(0)
        with moving.Else():
            moving.d.sync += significand.eq(Cat(x.fraction, Const(1, 1)))

        moved = Cat(Const(0, 3), significand)
        for bit in reversed(range(5)):
            moved = Mux(moves[bit], moved >> (1 << bit), moved)[:27]
        aligned = Signal(27, reset_less=True)
        moving.d.sync += aligned.eq(moved ^ moved_flags.subtract.replicate(27))

        # Rounding adds the lowest bit, or subtracts it.
        base, difference = Signal(28, reset_less=True), Signal(28)
        left = Signal(5, reset_less=True)
        m.d.comb += difference.eq((Cat(Const(1, 1), base) + Cat(aligned, flags.subtract.replicate(2)))[1:])
        with moving.If(flags.place & moved_flags.place):
            moving.d.sync += base.eq(0)
        with moving.Elif(flags.place):
            beyond_fixed = Signal(8)
            m.d.comb += beyond_fixed.eq(common - _FIXED)
            moving.d.sync += [base.eq(difference), left.eq(beyond_fixed[:5] | beyond_fixed[5:].any().replicate(5))]

        # From the common place to that of a distance, a place a cycle.
        d, beyond = Signal(DISTANCE_BITS, reset_less=True), Signal(reset_less=True)
        steps = Signal(5)
        m.d.comb += [
            self.busy_next.eq(Mux(self.advance, flags.measure & left.any(), self.busy & (steps != 1))),
            self.d.eq(d),
            self.beyond.eq(beyond),
        ]
        m.d.sync += self.busy.eq(self.busy_next)
        with m.If(self.advance | self.busy):
            m.d.sync += [
                d.eq(Mux(self.advance, difference, Cat(Const(0, 1), d))),
                beyond.eq(Mux(self.advance, flags.beyond | difference[DISTANCE_BITS:-1].any(), beyond | d[-1])),
                steps.eq(Mux(self.advance, left, steps - 1)),
            ]
        return m

"""A unit that computes the distances of a row's numbers from the row's maximum. The numbers are binary32, the distances
fixed-point."""

from amaranth import Cat, Const, EnableInserter, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..spec.softmax import DISTANCE_BITS, DISTANCE_FRACTION
from .float_formats import EXPONENT_BIAS, Binary32

__all__ = ["RowDistance"]

#: Exponent field of the numbers whose last place equals the last place of a distance.
_FIXED = EXPONENT_BIAS + 23 - DISTANCE_FRACTION


class RowDistance(wiring.Component):
    """Computes `max(x) - x` for the numbers of a row.

    Throughput: one number a cycle. The distance appears `latency` cycles after its number. The pipeline stalls while
    `advance` is 0. A row takes three phases:

    1. Search: every number of the row enters with `search`, the first one also with `first`. `maximum` is valid one cycle after
       the last search.
    2. Place: `place` is 1 for two cycles; x must be the maximum in the second cycle.
    3. Measure: the numbers of the row enter again with `measure`. The next search may follow in the next cycle.

    All numbers of a row are rounded to a common last place, halves away from 0; the subtraction is then exact. The common last
    place is 2**-12, or half the last place of the maximum if that is larger. x is a sum of the array: never subnormal, and its
    only NaN counts as larger than every number.

    Members
    -------
    x : Binary32, in
    search, first, place, measure : 1, in
    advance : 1, in
        Must be 0 while `busy` is 1.
    busy : 1, out
        A distance from a maximum of 8,192 or more is being shifted: one cycle for each binade, starting at 8,192.
    busy_next : 1, out
        The value of `busy` in the next cycle.
    maximum : Binary32, out
    infinite : 1, out
        The maximum of the last `place` is an infinity or NaN; the distances are undefined.
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
        moving = Module()  # the registers that `advance` enables
        m.submodules.moving = EnableInserter(self.advance)(moving)
        x, maximum = self.x, Signal(Binary32, reset_less=True)
        m.d.comb += self.maximum.eq(maximum)

        # The maximum; an equal number may replace it.
        larger = Signal()
        below = Cat(maximum.fraction, maximum.exponent) - Cat(x.fraction, x.exponent)
        m.d.comb += larger.eq(Mux(x.sign == maximum.sign, x.sign ^ below[-1], maximum.sign))
        with moving.If(self.search & (self.first | larger)):
            moving.d.sync += maximum.eq(x)

        # The right shift of x, which starts three bits to the left: two bits because a negative number can have a larger
        # exponent than the maximum, one bit for rounding. The first cycle of `place` sets the common place; the second one
        # shifts the maximum to it.
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

        # Shift from the common place to the last place of a distance, one bit a cycle.
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

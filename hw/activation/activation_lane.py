"""From a sum to a lane of a result: function and rounding."""

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ActivationLane"]


class ActivationLane(wiring.Component):
    """The function and the rounding of one lane; combinational.

    `value` is a sum as the cells make it: no subnormal, and every NaN 0x7FC00000. `keep` at 0 makes the lane +0, and so does a
    negative sum with `relu`. `rounded` is bfloat16, to nearest, ties to even; a sum that is no subnormal cannot round to one.
    With `cut` it is the next bfloat16 towards 0, which is the sum's upper half, and with `cut` and `low` the sum's lower half.

    Parameters
    ----------
    cuts : bool
        Whether there is `cut`.
    halves : bool
        Whether there are `low`, `wide` and `stays`, in place of `binary32`.

    Members
    -------
    value : 32, in
        binary32.
    relu, keep, cut, low : 1, in
    wide : 1, in
        `rounded` is +0, as the result is binary32.
    stays : 1, out
        The result is not +0 for `relu` or `keep`.
    binary32 : 32, out
    rounded : 16, out
        bfloat16.
    """

    def __init__(self, *, cuts=False, halves=False):
        self._halves = halves
        super().__init__(
            {
                "value": In(32),
                "relu": In(1),
                "keep": In(1),
                **({"cut": In(1)} if cuts else {}),
                **({"low": In(1), "wide": In(1), "stays": Out(1)} if halves else {"binary32": Out(32)}),
                "rounded": Out(16),
            }
        )
        self._cut = self.cut if cuts else Const(0)

    def elaborate(self, platform):
        m = Module()
        stays = self.keep & ~(self.relu & self.value[31])
        # Infinities and the NaN have no low bits: they never round.
        high, low = self.value[16:], self.value[:16]
        up = ~self._cut & low[15] & (low[:15].any() | high[0])
        # The sum waits for none of `up`, which comes late: it has all of the lower half behind it.
        above = Signal(16)
        m.d.comb += above.eq(high + 1)
        if self._halves:
            shown = stays & ~self.wide
            as_it_is = Mux(self.low, low, high) & shown.replicate(16)
            m.d.comb += [self.stays.eq(stays), self.rounded.eq(Mux(up & shown, above, as_it_is))]
            return m
        m.d.comb += [
            self.rounded.eq(Mux(up, above, high) & stays.replicate(16)),
            self.binary32.eq(self.value & stays.replicate(32)),
        ]
        return m

"""One lane of the activation unit: ReLU and rounding of a sum."""

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["ActivationLane"]


class ActivationLane(wiring.Component):
    """ReLU and rounding of one lane; combinational.

    `value` must be a sum from the cells: no subnormal, and every NaN 0x7FC00000. The lane becomes +0 if `keep` is 0, or if
    `relu` is 1 and the sum is negative. `rounded` is rounded to bfloat16, to nearest, ties to even; a normal sum never rounds to
    a subnormal. With `cut`, `rounded` is the upper half of the sum (truncation to bfloat16). With `cut` and `low`, `rounded` is
    the lower half of the sum.

    Parameters
    ----------
    cuts : bool
        Adds the port `cut`.
    halves : bool
        Adds the ports `low`, `wide` and `stays`, and removes `binary32`.

    Members
    -------
    value : 32, in
        binary32.
    relu, keep, cut, low : 1, in
    wide : 1, in
        The result is binary32, and `rounded` is +0.
    stays : 1, out
        Neither `relu` nor `keep` makes the result +0.
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
        # The low bits of infinities and of the NaN are 0: they never round.
        high, low = self.value[16:], self.value[:16]
        up = ~self._cut & low[15] & (low[:15].any() | high[0])
        # A short path: the sum does not depend on `up`, which is late, as it reads the whole lower half.
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

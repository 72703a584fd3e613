"""One cell of the systolic array."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.adder import Adder
from ..arithmetic.multiplier import Multiplier
from ..spec.cell_stages import STAGES, split_stages

__all__ = ["Cell"]


class Cell(wiring.Component):
    """One multiply-accumulate cell of a weight-stationary systolic array.

    Activations move right and sums move down. The cell adds `ftz(rne(x * weight))` to each passing sum, as
    `ftz(rne(sum + product))` in binary32. With `lead` and `latency` from :func:`split_stages`::

        x_o(t + 1) = x_i(t)    w_o(t + 1) = w_i(t)    switch_o(t + 1) = switch_i(t)    mark_o(t + 2 / weight_rows) = mark_i(t)
        sum_o(t + lead + latency) = sum_i(t + lead) + x_i(t) * active(t)

    Weights are double-buffered. The weights of a row of cells move right as a stream, and a mark follows at half their
    speed, so that it meets word c of the stream in column c. With a `weight_rows` of 2, even and odd columns have a stream each,
    which skips the other columns, and the mark moves one column a cycle. A cell with `mark_i` high takes `w_i` as its shadow
    weight. `switch_i` makes the shadow weight active from the next cycle on, and comes one cycle before the first `x` of a tile.
    With both in one cycle, the switch takes the shadow weight from before the mark::

        cycle       0    1    2    3
        w_i         w0   w1   ..   ..
        mark_i      1    0    0    0      w0 becomes the shadow weight
        switch_i    0    1    0    0      the shadow weight becomes active
        x_i         -    -    x0   x1     products x0 w0, x1 w0

    The array has no handshake and no stall: every cycle does one multiplication and one addition. Reset clears marks and
    switches only; the units around the array know which sums are valid.

    Parameters
    ----------
    stages : int
        Pipeline stages, 1 to 9.
    weight_rows : int
        Streams of weights in a row of cells, 1 or 2.

    Members
    -------
    x_i, x_o : 16
        Activations, bfloat16.
    w_i, w_o : 16
        Stream of weights, bfloat16.
    mark_i, mark_o : 1
        Take `w_i` as the shadow weight.
    switch_i, switch_o : 1
        Use the shadow weight from the next cycle on.
    sum_i, sum_o : 32
        Sums, binary32.
    """

    def __init__(self, *, stages, weight_rows=1):
        if not isinstance(stages, int) or isinstance(stages, bool) or stages not in STAGES:
            raise ValueError(f"stages must be an integer from 1 to 9, not {stages!r}")
        self.stages = stages
        self.weight_rows = weight_rows
        self.lead, self.latency = split_stages(stages)
        super().__init__(
            {
                "x_i": In(16),
                "x_o": Out(16),
                "w_i": In(16),
                "w_o": Out(16),
                "mark_i": In(1),
                "mark_o": Out(1),
                "switch_i": In(1),
                "switch_o": Out(1),
                "sum_i": In(32),
                "sum_o": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiplier = multiplier = Multiplier(lead=self.lead)
        m.submodules.adder = adder = Adder(latency=self.latency, canonical_b=True)

        x = Signal(16, reset_less=True)
        w = Signal(16, reset_less=True)
        shadow = Signal(16, reset_less=True)
        active = Signal(16, reset_less=True)
        mark = self.mark_i
        m.d.sync += [x.eq(self.x_i), w.eq(self.w_i)]
        if self.weight_rows == 1:
            mark = Signal()
            m.d.sync += mark.eq(self.mark_i)
        m.d.sync += [self.mark_o.eq(mark), self.switch_o.eq(self.switch_i)]
        with m.If(self.mark_i):
            m.d.sync += shadow.eq(self.w_i)
        with m.If(self.switch_i):
            m.d.sync += active.eq(shadow)

        m.d.comb += [
            self.x_o.eq(x),
            self.w_o.eq(w),
            multiplier.x.eq(self.x_i),
            multiplier.w.eq(active),
            adder.a.eq(self.sum_i),
            adder.b.eq(multiplier.o),
            self.sum_o.eq(adder.o),
        ]
        return m

"""The sum of the exponentials of a row, exact in fixed point."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .layouts import SUM_FRACTION

__all__ = ["RowSum"]


class RowSum(wiring.Component):
    """Adds the terms of each row: a tree of adders for a group, then a running sum.

    Throughput: one group a cycle. Rows may follow each other without a gap.

    Parameters
    ----------
    lanes : int
        Terms of a group, a power of two.
    width : int
        Bits of a sum.

    Members
    -------
    valid, first, last, infinite : 1, in
        `valid`: a group of a row is present. `first`, `last`: it is the first or the last group of the row. `infinite`: a flag
        of the last group, which is output as `o_infinite`.
    terms : 32 lanes, in
    done : 1, out
        `total` is the sum of a row.
    total : width, out
    o_infinite : 1, out
    """

    def __init__(self, *, lanes, width):
        self.lanes = lanes
        #: Cycles from the last group to the sum.
        self.latency = exact_log2(lanes) + 1
        flags = {name: In(1) for name in ("valid", "first", "last", "infinite")}
        super().__init__({**flags, "terms": In(SUM_FRACTION * lanes), "done": Out(1), "total": Out(width), "o_infinite": Out(1)})

    def elaborate(self, platform):
        m = Module()
        level = [self.terms.word_select(lane, SUM_FRACTION) for lane in range(self.lanes)]
        flags = [self.valid, self.first, self.last, self.infinite]
        while len(level) > 1:
            pairs = len(level) // 2
            sums = [Signal(len(level[0]) + 1, name=f"sum_{pairs}_{index}", reset_less=True) for index in range(pairs)]
            m.d.sync += [out.eq(a + b) for out, a, b in zip(sums, level[::2], level[1::2])]
            moved = [Signal(name=f"flag_{pairs}_{index}") for index in range(len(flags))]
            m.d.sync += [after.eq(before) for before, after in zip(flags, moved)]
            level, flags = sums, moved
        valid, first, last, infinite = flags
        total, ended = Signal(len(self.total), reset_less=True), Signal(reset_less=True)
        with m.If(valid):
            m.d.sync += [total.eq(Mux(first, 0, total) + level[0]), ended.eq(infinite)]
        m.d.sync += self.done.eq(valid & last)
        m.d.comb += [self.total.eq(total), self.o_infinite.eq(ended)]
        return m

"""From vectors of host memory to the halves of bias rows."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..spec.isa import Half

__all__ = ["BiasPort"]


class BiasPort(wiring.Component):
    """Where the vectors of a LOAD_BIAS go, one a cycle. What comes in cycle t is written by the end of cycle t + 2.

    A memory takes 16 bits a lane and cycle. A vector of halves has them for all lanes. Of a whole row the first vector has the
    pairs of the lower half of the lanes, the second vector those of the upper lanes; the other lanes have a cycle for the upper
    halves of the pairs. So that this cycle is free, the upper lanes work one cycle behind the lower ones.

    Parameters
    ----------
    n : int
        Lanes.
    bias_depth : int
        Bias rows.

    Members
    -------
    load.write : 1, in
        A vector comes for the biases.
    load.half : Half, in
    load.row : 16, in
        Twice the bias row; and one more for the second vector of a whole row. Both are there from the first vector of a row to
        the last one, in pauses too.
    load.vector : 16 n, in
    bias_write : 2 n, out
    bias_write_row : 2 bias rows, out
    bias_data : 16 n, out
        To the accumulators; see :class:`hw.array.accumulators.Accumulators`.
    """

    def __init__(self, *, n, bias_depth):
        self.n = n
        load = {"write": Out(1), "half": Out(Half), "row": Out(16), "vector": Out(16 * n)}
        super().__init__(
            {
                "load": In(wiring.Signature(load)),
                "bias_write": Out(2 * n),
                "bias_write_row": Out(2 * bits_for(bias_depth - 1)),
                "bias_data": Out(16 * n),
            }
        )

    def elaborate(self, platform):
        m = Module()
        load, n = self.load, self.n
        whole, second = load.half == Half.WHOLE, load.row[0]

        # Words of `halves`, `pairs` and their successors are 0 when the vector is of the other kind, so a lane needs no more
        # than to join them.
        halves, pairs = Signal(16 * n, reset_less=True), Signal(16 * n, reset_less=True)
        upper_lanes, upper_halves = Signal(8 * n, reset_less=True), Signal(8 * n, reset_less=True)
        kept, paired, rows = Signal(2), Signal(2), Signal(len(self.bias_write_row) // 2, reset_less=True)
        kept_before, paired_before, rows_before = (Signal.like(value, name_suffix="_before") for value in (kept, paired, rows))
        m.d.sync += [
            halves.eq(Mux(whole, 0, load.vector)),
            pairs.eq(Mux(whole, load.vector, 0)),
            upper_lanes.eq(halves[8 * n :]),
            upper_halves.eq(Cat(pairs.word_select(word, 16) for word in range(1, n, 2))),
            kept.eq(Cat(load.write & (load.half == half) for half in (Half.LOWER, Half.UPPER))),
            paired.eq(Cat(load.write & whole & ~second, load.write & whole & second)),
            rows.eq(load.row >> 1),
            *(before.eq(now) for before, now in ((kept_before, kept), (paired_before, paired), (rows_before, rows))),
        ]
        m.d.comb += self.bias_write_row.eq(Cat(rows, rows_before))
        for lane in range(n):
            behind, pair = divmod(lane, n // 2)
            half = upper_lanes.word_select(pair, 16) if behind else halves.word_select(lane, 16)
            low, high = pairs.word_select(2 * pair, 16), upper_halves.word_select(pair, 16)
            chosen = Mux(paired[1], low, high) if behind else Mux(paired_before[0], high, low)
            ends = kept_before if behind else kept
            m.d.comb += [
                self.bias_data.word_select(lane, 16).eq(half | chosen),
                self.bias_write.word_select(lane, 2).eq(ends | Cat(paired[behind], paired_before[behind])),
            ]
        return m

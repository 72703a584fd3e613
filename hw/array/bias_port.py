"""The write port of the bias rows: splits loaded vectors into halves of binary32 biases."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..spec.isa import Half

__all__ = ["BiasPort"]


class BiasPort(wiring.Component):
    """Writes the vectors of a LOAD_BIAS, one a cycle. A vector of cycle t is written by the end of cycle t + 2.

    The bias memory takes 16 bits a lane and cycle. A vector of halves holds 16 bits for every lane. A whole row takes two
    vectors: the first holds binary32 pairs for the lower n/2 lanes, the second pairs for the upper lanes. Each pair takes two
    cycles; the upper lanes work one cycle behind the lower ones, which makes the second cycle free.

    Parameters
    ----------
    n : int
        Lanes.
    bias_depth : int
        Bias rows.

    Members
    -------
    load.write : 1, in
        A vector for the biases.
    load.half : Half, in
    load.row : 16, in
        Twice the bias row, plus one for the second vector of a whole row. `half` and `row` stay valid from the first vector of
        a row to the last one, also in cycles without `write`.
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

        # `halves` and `pairs` are 0 for vectors of the other kind, so a lane combines them with an OR.
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

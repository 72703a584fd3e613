"""The write port of the bias rows. It splits loaded vectors into biases or halves of biases."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..lib.width_converter import WidthConverter
from ..spec.isa import Half
from ..spec.memory_ports import bias_port, loads_port

__all__ = ["BiasPort"]


class BiasPort(wiring.Component):
    """Writes the vectors of a LOAD_BIAS to the bias memory, one vector per cycle.

    If the layout of transfers has no `half`, a row of biases takes two vectors and is written in the cycle of the second.

    If the layout has `half`, a vector of cycle t is written by the end of cycle t + 2. The bias memory takes 16 bits per lane and
    cycle. A vector of halves holds 16 bits for every lane. A whole row takes two vectors: the first has a pair of words, a
    binary32 bias, for each of the lower n/2 lanes, the second for each of the upper lanes. Each pair takes two cycles. The upper
    lanes work one cycle after the lower ones, which makes their second cycle free.

    Parameters
    ----------
    n : int
        Lanes.
    bias_depth : int
        Bias rows.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.

    Members
    -------
    load : loads port, in
        See :func:`hw.spec.memory_ports.loads_port`. Vectors with `bias` are written. `half` and `row` stay valid from the first
        vector of a row to the last one, also in cycles without `write`.
    biases : bias port, out
        To the accumulators; see :func:`hw.spec.memory_ports.bias_port`.
    """

    def __init__(self, *, n, bias_depth, transfer):
        self.n = n
        self.has_halves = "half" in transfer.members
        biases = bias_port(bits_for(bias_depth - 1), n, halves=self.has_halves)
        super().__init__({"load": In(loads_port(transfer, 16 * n)), "biases": Out(biases)})

    def elaborate(self, platform):
        m = Module()
        write = Signal()
        m.d.comb += write.eq(self.load.write & self.load.bias)
        if self.has_halves:
            self._write_halves(m, write)
        else:
            m.submodules.rows = rows = WidthConverter(width=16 * self.n, ratio=2)
            m.d.comb += [
                rows.i_valid.eq(write),
                rows.i.eq(self.load.vector),
                self.biases.write.eq(rows.o_valid),
                self.biases.row.eq(self.load.row >> 1),
                self.biases.data.eq(rows.o),
            ]
        return m

    def _write_halves(self, m, write):
        load, biases, n = self.load, self.biases, self.n
        whole, second = load.half == Half.WHOLE, load.row[0]

        # `halves` and `pairs` are 0 for vectors of the other kind, so a lane combines them with an OR.
        halves, pairs = Signal(16 * n, reset_less=True), Signal(16 * n, reset_less=True)
        upper_lanes, upper_halves = Signal(8 * n, reset_less=True), Signal(8 * n, reset_less=True)
        kept, paired, rows = Signal(2), Signal(2), Signal(len(biases.row) // 2, reset_less=True)
        kept_before, paired_before, rows_before = (Signal.like(value, name_suffix="_before") for value in (kept, paired, rows))
        m.d.sync += [
            halves.eq(Mux(whole, 0, load.vector)),
            pairs.eq(Mux(whole, load.vector, 0)),
            upper_lanes.eq(halves[8 * n :]),
            upper_halves.eq(Cat(pairs.word_select(word, 16) for word in range(1, n, 2))),
            kept.eq(Cat(write & (load.half == half) for half in (Half.LOWER, Half.UPPER))),
            paired.eq(Cat(write & whole & ~second, write & whole & second)),
            rows.eq(load.row >> 1),
            *(before.eq(now) for before, now in ((kept_before, kept), (paired_before, paired), (rows_before, rows))),
        ]
        ends = [(kept, kept_before)[behind] | Cat(paired[behind], paired_before[behind]) for behind in range(2)]
        writes = [Signal(2, name=f"write_{part}") for part in ("lower", "upper")]
        m.d.comb += [write.eq(end) for write, end in zip(writes, ends)]
        m.d.comb += [biases.row.eq(Cat(rows, rows_before)), biases.write.eq(Cat(write.replicate(n // 2) for write in writes))]
        for lane in range(n):
            behind, pair = divmod(lane, n // 2)
            half = upper_lanes.word_select(pair, 16) if behind else halves.word_select(lane, 16)
            low, high = pairs.word_select(2 * pair, 16), upper_halves.word_select(pair, 16)
            chosen = Mux(paired[1], low, high) if behind else Mux(paired_before[0], high, low)
            m.d.comb += biases.data.word_select(lane, 16).eq(half | chosen)

"""From vectors of host memory to the halves of bias rows."""

from amaranth import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..spec.isa import Half

__all__ = ["BiasPort"]


class BiasPort(wiring.Component):
    """Where the vectors of a LOAD_BIAS go, in the cycle in which they come; combinational.

    Two vectors make a row of n binary32: the first one holds the biases of the lower lanes, the second one those of the upper
    lanes. They are written one after the other, so nothing holds the first one. A vector of halves goes to all lanes.

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
        Twice the bias row; and one more for the second vector of a whole row.
    load.vector : 16 n, in
    bias_write : 2 n, out
    bias_write_row : bias row, out
    bias_data : 32 n, out
        To the accumulators; see :class:`hw.array.accumulators.Accumulators`.
    """

    def __init__(self, *, n, bias_depth):
        self.n = n
        load = {"write": Out(1), "half": Out(Half), "row": Out(16), "vector": Out(16 * n)}
        super().__init__(
            {
                "load": In(wiring.Signature(load)),
                "bias_write": Out(2 * n),
                "bias_write_row": Out(bits_for(bias_depth - 1)),
                "bias_data": Out(32 * n),
            }
        )

    def elaborate(self, platform):
        m = Module()
        load, n = self.load, self.n
        whole, upper_lanes = load.half == Half.WHOLE, load.row[0]
        words = [load.vector.word_select(lane, 16) for lane in range(n)]
        m.d.comb += self.bias_write_row.eq(load.row >> 1)
        for place in range(2 * n):
            lane, half = place // 2, (Half.LOWER, Half.UPPER)[place % 2]
            chosen = Mux(whole, upper_lanes == (lane >= n // 2), load.half == half)
            m.d.comb += [
                self.bias_write[place].eq(load.write & chosen),
                self.bias_data.word_select(place, 16).eq(Mux(whole, words[place % n], words[lane])),
            ]
        return m

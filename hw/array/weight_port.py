"""The write port of the weight FIFO: the path of loaded weights, in a core with attention through a transposer."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.hierarchy import instantiate
from ..spec.memory_ports import loads_port, vectors_port
from .transposer import Transposer

__all__ = ["WeightPort"]


class WeightPort(wiring.Component):
    """Passes the vectors of LOAD_WEIGHTS to the weight FIFO, directly or through a transposer.

    For a FIFO with two vectors in a word, even vectors are written to the lower half and odd vectors to the upper half.

    The transposer has no stall. Credits reserve space in the FIFO for each tile when it is requested.

    Parameters
    ----------
    n : int
        Lanes.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`, with `transpose` if `transposes` is true.
    transposes : bool
        Add the transposer.
    weight_rows : int
        Vectors of a word of the FIFO, 1 or 2.

    Members
    -------
    load : loads port, in
        See :func:`hw.spec.memory_ports.loads_port`.
    vectors : vectors port, out
        To the weight FIFO; see :func:`hw.spec.memory_ports.vectors_port`.
    """

    def __init__(self, *, n, transfer, transposes, weight_rows):
        self.n, self.transposes, self.weight_rows = n, transposes, weight_rows
        super().__init__({"load": In(loads_port(transfer, 16 * n)), "vectors": Out(vectors_port(n, weight_rows))})

    def elaborate(self, platform):
        m = Module()
        load, vectors = self.load, self.vectors
        if self.weight_rows == 2:
            vectors = vectors_port(self.n).create(path=("one",))
            upper = Signal()
            with m.If(vectors.write):
                m.d.sync += upper.eq(~upper)
            m.d.comb += [
                self.vectors.write.eq(Cat(vectors.write & ~upper, vectors.write & upper)),
                self.vectors.vector.eq(vectors.vector.replicate(2)),
            ]
        if self.transposes:
            instantiate(
                m,
                platform,
                lambda: Transposer(n=self.n),
                name="transposer",
                module="tpu_transposer",
                i_valid=load.write,
                i=load.vector,
                transpose=load.transpose,
                o_valid=vectors.write,
                o=vectors.vector,
            )
        else:
            m.d.comb += [vectors.write.eq(load.write), vectors.vector.eq(load.vector)]
        return m

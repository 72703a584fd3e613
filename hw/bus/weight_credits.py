"""Credits for the prefetch of weights. A credit is a free beat of the weight FIFO."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .burst_splitter import MAX_BURST, burst_request

__all__ = ["WeightCredits"]


class WeightCredits(wiring.Component):
    """A credit counter: a burst of weights passes only when the FIFO has room for all of its beats.

    A burst subtracts its beats from the credits; a tile that leaves the FIFO returns its beats. With credits for at least three
    bursts, a burst passes at once. With fewer, it passes one cycle after its arrival at the earliest.

    Parameters
    ----------
    address_width : int
        Bits.
    tiles : int
        Tiles in the FIFO.
    tile_beats : int
        Bus beats of a tile.
    vector_beats : int
        Bus beats of a vector.

    Attributes
    ----------
    longest : int
        Greatest length of a burst that cannot deadlock, in beats. Such a burst fits beside a tile that lacks its last beat and
        therefore cannot leave.

    Members
    -------
    i : stream of bursts, in
    o : stream of bursts, out
        The same bursts.
    freed : 1, in
        A tile has left the FIFO.
    urgent : 1, out
        Two cycles ago, fewer beats than `cushion` vectors, and than half the FIFO, were requested or stored.
    """

    #: Vectors that cover the latency of a memory.
    cushion = 64

    def __init__(self, *, address_width, tiles, tile_beats, vector_beats):
        self.capacity = tiles * tile_beats
        self.tile_beats = tile_beats
        self.longest = min(MAX_BURST, 1 << (self.capacity - tile_beats + 1).bit_length() - 1)
        self.low = min(self.cushion * vector_beats, self.capacity // 2)
        burst = stream.Signature(burst_request(address_width))
        super().__init__({"i": In(burst), "o": Out(burst), "freed": In(1), "urgent": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        room = Signal(range(self.capacity + 1), init=self.capacity)  # the credits, in beats
        # `taken` subtracts a burst from `room` one cycle after the burst passed. `fits` compares the waiting burst with `room`
        # in a cycle in which `taken` is 0. `ample` needs no comparison: three bursts fit, and at most two are not yet subtracted.
        fits, ample = Signal(), Signal()
        taken = Signal(range(MAX_BURST + 1))
        m.d.comb += [
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & (fits | ample)),
            self.i.ready.eq(self.o.ready & (fits | ample)),
        ]
        m.d.sync += [
            ample.eq(room >= 3 * MAX_BURST),
            fits.eq(
                self.i.valid & ~self.i.ready & (taken == 0) & ((self.i.p.beats <= room[: len(taken)]) | room[len(taken) :].any())
            ),
            self.urgent.eq(room > self.capacity - self.low),
            taken.eq(Mux(self.o.valid & self.o.ready, self.i.p.beats, 0)),
            room.eq(room - taken + Mux(self.freed, self.tile_beats, 0)),
        ]
        return m

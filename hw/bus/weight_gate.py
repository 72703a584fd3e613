"""Keeps the prefetch of weights within the room of the weight FIFO."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .burst_splitter import MAX_BURST, burst_request

__all__ = ["WeightGate"]


class WeightGate(wiring.Component):
    """Lets a burst of weights through when the FIFO has room for all of it; when that is little, a cycle after it came.

    `urgent` says that little is asked for or stored: less than `cushion` vectors, which cover the latency of a memory, or
    than half the FIFO; it is two cycles old.

    Parameters
    ----------
    address_width : int
        Bits.
    tiles, tile_beats, vector_beats : int
        Tiles in the FIFO; bus beats of a tile and of a vector.

    Attributes
    ----------
    longest : int
        Beats of the longest burst that always gets through in the end: it fits beside a tile whose last beat is missing,
        which frees nothing.
    """

    #: Vectors.
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
        # Beats that are free, and that have been asked for or hold weights.
        room = Signal(range(self.capacity + 1), init=self.capacity)
        # A burst counts one cycle after it went through: the one that is there fits, as seen when nothing was yet to be
        # counted; or any three would have, a cycle ago.
        fits, ample = Signal(), Signal()
        taken = Signal(range(MAX_BURST + 1))
        m.d.comb += [
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & (fits | ample)),
            self.i.ready.eq(self.o.ready & (fits | ample)),
        ]
        m.d.sync += [
            ample.eq(room >= 3 * MAX_BURST),
            fits.eq(self.i.valid & ~self.i.ready & (taken == 0)
                    & ((self.i.p.beats <= room[:len(taken)]) | room[len(taken):].any())),
            self.urgent.eq(room > self.capacity - self.low),
            taken.eq(Mux(self.o.valid & self.o.ready, self.i.p.beats, 0)),
            room.eq(room - taken + Mux(self.freed, self.tile_beats, 0)),
        ]
        return m

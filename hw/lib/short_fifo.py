"""A short FIFO whose flags are registers."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .checks import check_power_of_two

__all__ = ["ShortFifo"]


class ShortFifo(wiring.Component):
    """A FIFO with one register for each entry's occupation, so that no logic precedes `w_rdy` and `r_rdy`, and little follows
    `r_en`.

    The ports are as in :class:`amaranth.lib.fifo.SyncFIFO`, except that `w_en` must be 0 while `w_rdy` is 0, and `r_en` must be 0
    while `r_rdy` is 0.

    Parameters
    ----------
    shape : layout
        Layout of an entry.
    depth : int
        Number of entries, a power of two, at least 2.

    Members
    -------
    w_en : 1, in
        Adds `w_data`.
    w_rdy : 1, out
        The FIFO has room. Registered.
    w_data : shape, in
    r_en : 1, in
        Removes the first entry.
    r_rdy : 1, out
        The FIFO holds an entry. Registered.
    r_data : shape, out
        The first entry.
    """

    def __init__(self, *, shape, depth):
        check_power_of_two("depth", depth, 2)
        self.depth = depth
        super().__init__(
            {"w_en": In(1), "w_rdy": Out(1), "w_data": In(shape), "r_en": In(1), "r_rdy": Out(1), "r_data": Out(shape)}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = Memory(shape=self.w_data.shape(), depth=self.depth, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        newest, oldest = Signal(range(self.depth)), Signal(range(self.depth))
        held = Signal(self.depth)  # bit i: the FIFO holds more than i entries
        with m.If(self.w_en):
            m.d.sync += newest.eq(newest + 1)
        with m.If(self.r_en):
            m.d.sync += oldest.eq(oldest + 1)
        with m.If(self.w_en & ~self.r_en):
            m.d.sync += held.eq((held << 1) | 1)
        with m.Elif(self.r_en & ~self.w_en):
            m.d.sync += held.eq(held >> 1)
        m.d.comb += [
            write.en.eq(self.w_en),
            write.addr.eq(newest),
            write.data.eq(self.w_data),
            read.addr.eq(oldest),
            self.r_data.eq(read.data),
            self.w_rdy.eq(~held[-1]),
            self.r_rdy.eq(held[0]),
        ]
        return m

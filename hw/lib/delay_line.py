"""A fixed delay whose data is held in a memory instead of registers."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["DelayLine"]


class DelayLine(wiring.Component):
    """Delays `valid` and `data` by `cycles`.

    `valid` goes through a chain of registers with a reset, `data` through a circular buffer.

    Parameters
    ----------
    cycles : int
        Delay, at least 2.
    width : int
        Bits of `data`.

    Members
    -------
    i_valid : 1, in
    i_data : width, in
    o_valid : 1, out
    o_data : width, out
    """

    def __init__(self, *, cycles, width):
        if cycles < 2:
            raise ValueError(f"cycles must be at least 2, not {cycles!r}")
        self.cycles = cycles
        super().__init__({"i_valid": In(1), "i_data": In(width), "o_valid": Out(1), "o_data": Out(width)})

    def elaborate(self, platform):
        m = Module()

        chain = Signal(self.cycles)
        m.d.sync += chain.eq((chain << 1) | self.i_valid)
        m.d.comb += self.o_valid.eq(chain[-1])

        # The read port returns the word that is about to be overwritten: one turn of the buffer, and one output register.
        length = self.cycles - 1
        m.submodules.ring = ring = Memory(shape=len(self.i_data), depth=length, init=[])
        write, read = ring.write_port(), ring.read_port()
        position = Signal(range(max(2, length)))
        with m.If(position == length - 1):
            m.d.sync += position.eq(0)
        with m.Else():
            m.d.sync += position.eq(position + 1)
        m.d.comb += [
            write.en.eq(1),
            write.addr.eq(position),
            write.data.eq(self.i_data),
            read.en.eq(1),
            read.addr.eq(position),
            self.o_data.eq(read.data),
        ]
        return m

"""A queue of groups in block RAM, whose places are reserved before a group enters a pipeline."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..lib.memories import NO_COLLISIONS

__all__ = ["GroupFifo"]


def _moved(count, up, down):
    return count + Cat(up ^ down, (down & ~up).replicate(len(count) - 1))


class GroupFifo(wiring.Component):
    """A queue of `depth` groups of `width` bits.

    Before a group is written, `reserve` must have reserved a place for it. The pipeline before the queue therefore needs no
    stall.

    ```
    cycle     0        1        2        3          a read without stalls
    read      x
    o                           group               through the memory and a register; held until the next one
    ```

    Members
    -------
    reserve : 1, in
        Reserve a place. Only allowed with `space`.
    space : 1, out
        A place is free.
    write : 1, in
    i : width, in
    readable : 1, out
        A group can be read.
    read : 1, in
        Read the next group and free its place. Only allowed with `readable` and `advance`.
    advance : 1, in
        0 stalls the output of the memory and `o`.
    o : width, out
        The group that was read two cycles ago.
    """

    def __init__(self, *, width, depth):
        self.depth = depth
        super().__init__(
            {
                "reserve": In(1),
                "space": Out(1),
                "write": In(1),
                "i": In(width),
                "readable": Out(1),
                "read": In(1),
                "advance": In(1, init=1),
                "o": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=len(self.i), depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read = memory.write_port(), memory.read_port()
        taken, stored = Signal(range(self.depth + 1)), Signal(range(self.depth + 1))
        out = Signal(len(self.i), reset_less=True)
        m.d.comb += [
            self.space.eq(taken != self.depth),
            self.readable.eq(stored != 0),
            write.en.eq(self.write),
            write.data.eq(self.i),
            read.en.eq(self.read),
            self.o.eq(out),
        ]
        m.d.sync += [
            write.addr.eq(write.addr + self.write),
            read.addr.eq(read.addr + self.read),
            taken.eq(_moved(taken, self.reserve, self.read)),
            stored.eq(_moved(stored, self.write, self.read)),
        ]
        with m.If(self.advance):
            m.d.sync += out.eq(read.data)
        return m

"""What comes from the link, until the ring unit works on it."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..lib.memories import NO_COLLISIONS

__all__ = ["LinkFifo"]


class LinkFifo(wiring.Component):
    """A FIFO in block RAM that holds `depth` elements, and takes one only when it has a place for it.

    One element a cycle; through an empty FIFO in one cycle. `i.ready` is a register; a full FIFO takes again in the second cycle
    after one has left.

    Parameters
    ----------
    width : int
        Bits.
    depth : int
        Elements: a power of two.

    Members
    -------
    i, o : stream of width, in and out
    flush : 1, in
        Everything is taken and dropped, and what is there too.
    holds : 1, out
        It holds an element, or held one in the cycle before.
    """

    def __init__(self, *, width, depth):
        self.width = width
        self.depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width)), "flush": In(1), "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.width, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read = memory.write_port(), memory.read_port()

        # In front are three places, from the first to the last: the register at `o`; a register that takes what comes while no
        # other element is behind it, nor in it; and the memory's output. So no element waits for the memory unless two are
        # before it. `o.ready` comes late: it decides what flags of the first two places become, but no sum, and nothing of the
        # memory. So the memory's output leaves whenever the place before it is free, and a place counts as free a cycle after it
        # is left.
        arrives, leaves = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        spare, spared, fetched = Signal.like(self.i.payload), Signal(), Signal()  # what is there in the second and third place
        held, one_held, left = Signal(), Signal(), Signal()  # in the memory are any, one; one left in the cycle before
        level, level_next = Signal(range(self.depth + 1)), Signal(range(self.depth + 1))  # in all places, with what has just left
        free, comes, kept, fetches = Signal(), Signal(), Signal(), Signal()  # to the first places; in the memory; out of it
        behind = spared | fetched | held
        following = Mux(fetched, read.data, self.i.payload)
        m.d.comb += [
            free.eq(~self.o.valid | leaves),
            comes.eq(fetched | (arrives & ~behind)),
            kept.eq(arrives & behind),
            fetches.eq(held & ~(fetched & spared)),
            one_held.eq((read.addr + 1)[: len(read.addr)] == write.addr),
            level_next.eq(level + arrives - left),
            self.holds.eq(level.any()),
            write.en.eq(arrives),  # into a free row; it counts if it is kept
            write.data.eq(self.i.payload),
            read.en.eq(fetches),
        ]
        with m.If(free):
            m.d.sync += self.o.payload.eq(Mux(spared, spare, following))
        with m.If(~spared):
            m.d.sync += spare.eq(following)
        with m.If(kept):
            m.d.sync += write.addr.eq(write.addr + 1)
        with m.If(fetches):
            m.d.sync += read.addr.eq(read.addr + 1)
        m.d.sync += [
            held.eq(kept | (held & ~(fetches & one_held))),
            fetched.eq(fetches | (fetched & spared)),
            spared.eq(~free & (spared | comes)),
            self.o.valid.eq(~free | spared | comes),
            left.eq(leaves),
            level.eq(level_next),
            self.i.ready.eq(level_next != self.depth),
        ]
        with m.If(self.flush):
            m.d.sync += [
                *(position.eq(0) for position in (write.addr, read.addr, held, fetched, spared, self.o.valid, left, level)),
                self.i.ready.eq(1),
            ]
        return m

"""The input buffer of the ring unit. It holds vectors that were received from the link."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..lib.memories import NO_COLLISIONS

__all__ = ["LinkFifo"]


class LinkFifo(wiring.Component):
    """A FIFO in block RAM with a capacity of `depth` elements. It accepts an element only if it is not full.

    The throughput is one element per cycle. The latency through an empty FIFO is one cycle. `i.ready` is a register: a full FIFO
    accepts again in the second cycle after an element has left.

    Parameters
    ----------
    width : int
        Bits.
    depth : int
        Capacity in elements, a power of two.

    Members
    -------
    i, o : stream of width, in and out
    flush : 1, in
        Discards the stored elements, and all elements that arrive.
    holds : 1, out
        The FIFO holds an element, or held one in the previous cycle.
    """

    def __init__(self, *, width, depth):
        self.width = width
        self.depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width)), "flush": In(1), "holds": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.width, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read = memory.write_port(), memory.read_port()

        # Three registers form the head of the FIFO, in this order: `o`, `spare`, and the output of the memory. `spare` accepts an
        # arriving element if `spare`, the memory and its output are empty. So an element waits for the memory only if two
        # elements are ahead of it. `o.ready` arrives late in the cycle: it drives the flags of the first two registers, but no
        # adder and no port of the memory. So the memory's output advances when `spare` is empty, and a place counts as free one
        # cycle after its element has left.
        arrives, leaves = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        spare, spared, fetched = Signal.like(self.i.payload), Signal(), Signal()  # flags: `spare`, the memory's output are valid
        held, one_held, left = Signal(), Signal(), Signal()  # the memory holds any, exactly one; one left in the previous cycle
        level, level_next = Signal(range(self.depth + 1)), Signal(range(self.depth + 1))  # elements, and the one that just left
        free, comes, kept, fetches = Signal(), Signal(), Signal(), Signal()  # `o` accepts; into registers, memory; out of memory
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
            write.en.eq(arrives),  # into a free row; the write takes effect if `kept`
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

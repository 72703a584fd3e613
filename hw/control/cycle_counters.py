"""Counters of which at most one counts in a cycle. They share a memory and one adder."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

__all__ = ["CycleCounters"]


class CycleCounters(wiring.Component):
    """Counters of 32 bits in a memory. In each cycle at most one of them counts, with a latency of two cycles.

    Parameters
    ----------
    count : int
        Number of counters.

    Members
    -------
    clear : 1, in
        Sets all counters to 0, and cancels the counts of this cycle and of the previous cycle.
    counts : 1, in
        Increments counter `index`.
    index : index, in
    read_index : index, in
    value : 32, out
        Value of the counter that `read_index` selected in the previous cycle.
    """

    def __init__(self, *, count):
        self.count = count
        index = bits_for(count - 1)
        ports = {"clear": In(1), "counts": In(1), "index": In(index), "read_index": In(index), "value": Out(32)}
        super().__init__(ports)

    def elaborate(self, platform):
        m = Module()
        m.submodules.storage = storage = Memory(shape=32, depth=self.count, init=[])
        write, old, read = storage.write_port(), storage.read_port(domain="comb"), storage.read_port(domain="comb")
        # Counters that have counted since `clear`; the others are 0, whatever the memory holds. `written` follows one cycle
        # later, when the memory holds the count.
        started, written = Signal(self.count), Signal(self.count)
        begun, counting = Signal(), Signal()
        m.d.comb += [
            read.addr.eq(self.read_index),
            write.addr.eq(old.addr),
            write.data.eq(Mux(begun, old.data, 0) + 1),
            write.en.eq(counting),
        ]
        m.d.sync += [
            self.value.eq(Mux(Array(written)[self.read_index], read.data, 0)),
            old.addr.eq(self.index),
            begun.eq(Array(started)[self.index]),
            counting.eq(self.counts & ~self.clear),
            written.eq(started),
        ]
        with m.If(self.clear):
            m.d.sync += [started.eq(0), written.eq(0)]
        with m.Elif(self.counts):
            m.d.sync += started.bit_select(self.index, 1).eq(1)
        return m

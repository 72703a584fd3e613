"""The splitter of transfers of any length into AXI4 bursts."""

from functools import cache

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from ..lib.checks import check_power_of_two

__all__ = ["BurstSplitter", "transfer_request", "burst_request", "length_field", "MAX_BURST"]

#: Most beats of a burst: short enough that three readers share the bus fairly.
MAX_BURST = 16


@cache
def transfer_request(address_width, beats_width):
    """Returns the layout of a transfer: byte address of the first beat, and the number of beats, which is not 0."""
    return data.StructLayout({"address": address_width, "beats": beats_width})


@cache
def burst_request(address_width):
    """Returns the layout of a burst: its address, 1 to `MAX_BURST` beats, and `last`, which marks the last burst of a
    transfer."""
    return data.StructLayout({"address": address_width, "beats": bits_for(MAX_BURST), "last": 1})


def length_field(beats):
    """Returns `beats` - 1, the length of a burst as AXI counts it, without a carry chain."""
    return Cat(bit ^ ~beats[:index].any() for index, bit in enumerate(beats))[: bits_for(MAX_BURST - 1)]


class BurstSplitter(wiring.Component):
    """A splitter of transfers into bursts. A burst ends at the end of an aligned block of `longest` beats, or of the transfer.

    The first burst is valid one cycle after the transfer is taken. Throughput is one burst a cycle. The next transfer is taken
    one cycle after the last burst. Addresses must be multiples of `bus_bytes`.

    Blocks are aligned and no longer than 2 KiB, so no burst crosses a 4 KiB boundary (AXI4, A3.4.1). From one burst to the next
    only the block number has to be computed.

    Parameters
    ----------
    address_width : int
        Bits.
    bus_bytes : int
        Bytes of a beat: a power of two up to 128.
    beats_width : int
        Bits of the count of beats of a transfer.
    longest : int
        Beats of a block: a power of two up to `MAX_BURST`.

    Members
    -------
    i : stream of transfers, in
        :func:`transfer_request`.
    o : stream of bursts, out
        :func:`burst_request`.
    """

    def __init__(self, *, address_width, bus_bytes, beats_width, longest=MAX_BURST):
        check_power_of_two("bus_bytes", bus_bytes, 1, 128)
        check_power_of_two("longest", longest, 1, MAX_BURST)
        self.bus_bytes = bus_bytes
        self.longest = longest
        super().__init__(
            {
                "i": In(stream.Signature(transfer_request(address_width, beats_width))),
                "o": Out(stream.Signature(burst_request(address_width))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        beat_bits, block_bits = exact_log2(self.bus_bytes), exact_log2(self.longest)
        new, beats = self.i.p.address[beat_bits:], self.i.p.beats

        # The current block, its first beat, the last beat of the last block, and the number of blocks after the current block.
        # The number of beats is a register, since the units that read it compare it and add it.
        block = Signal(len(new) - block_bits)
        first, end, single = Signal(block_bits), Signal(block_bits), Signal()
        span = Signal(max(len(beats), block_bits) + 1)
        behind = Signal(len(span) - block_bits)
        busy, last = Signal(), Signal()
        free = Signal(init=1)  # equals ~busy; each of the two has a lower fan-out than one would have
        m.d.comb += [
            span.eq(beats + (new[:block_bits].as_unsigned() - 1)),
            # equals span < longest, without the carry chain of `span`
            single.eq((beats <= self.longest) & (beats[: block_bits + 1] + new[:block_bits] <= self.longest)),
            self.o.valid.eq(busy),
            self.o.p.address[beat_bits + block_bits :].eq(block),
            self.o.p.address[beat_bits : beat_bits + block_bits].eq(first),
            self.o.p.last.eq(last),
            self.i.ready.eq(free),
        ]
        with m.If(free):
            m.d.sync += [
                busy.eq(self.i.valid),
                free.eq(~self.i.valid),
                block.eq(new[block_bits:]),
                first.eq(new),
                end.eq(span),
                behind.eq(span >> block_bits),
                last.eq(single),
                self.o.p.beats.eq(Mux(single, beats, self.longest - new[:block_bits])),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += [
                busy.eq(~last),
                free.eq(last),
                block.eq(block + 1),
                first.eq(0),
                behind.eq(behind - 1),
                last.eq(behind == 1),
            ]
            m.d.sync += self.o.p.beats.eq(Mux(behind == 1, end + 1, self.longest))
        return m

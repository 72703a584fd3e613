"""From transfers of any length to AXI4 bursts."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

__all__ = ["BurstSplitter", "transfer_request", "burst_request", "MAX_BURST"]

#: Beats of the longest burst: short enough that three readers share the bus fairly.
MAX_BURST = 16


def transfer_request(address_width):
    """A transfer: byte address of the first beat, count of beats (not 0)."""
    return data.StructLayout({"address": address_width, "beats": 32})


def burst_request(address_width):
    """A burst of 1 to `MAX_BURST` beats; `last` ends its transfer."""
    return data.StructLayout({"address": address_width, "beats": bits_for(MAX_BURST), "last": 1})


class BurstSplitter(wiring.Component):
    """Splits a transfer into bursts of at most `longest` beats that cross no 4 KiB boundary (AXI4, A3.4.1).

    The first burst comes one cycle after the transfer, then one a cycle. Addresses are multiples of `bus_bytes`.
    """

    def __init__(self, *, address_width, bus_bytes, longest=MAX_BURST):
        if not 1 <= longest <= MAX_BURST:
            raise ValueError(f"longest must be 1 to {MAX_BURST}, not {longest!r}")
        self.bus_bytes = bus_bytes
        self.longest = longest
        super().__init__({
            "i": In(stream.Signature(transfer_request(address_width))),
            "o": Out(stream.Signature(burst_request(address_width))),
        })

    def elaborate(self, platform):
        m = Module()
        beats_a_page = 4096 // self.bus_bytes
        beat_bits = bits_for(self.bus_bytes - 1)
        address, left = Signal.like(self.i.p.address), Signal.like(self.i.p.beats)
        to_boundary = Signal(range(beats_a_page + 1))
        limit, beats = Signal(range(MAX_BURST + 1)), Signal(range(MAX_BURST + 1))
        last = Signal()
        m.d.comb += [
            last.eq(left <= limit),
            to_boundary.eq(beats_a_page - address[beat_bits:12]),
            limit.eq(Mux(to_boundary < self.longest, to_boundary, self.longest)),
            beats.eq(Mux(left < limit, left, limit)),
            self.o.valid.eq(left != 0),
            self.o.p.address.eq(address),
            self.o.p.beats.eq(beats),
            self.o.p.last.eq(last),
            self.i.ready.eq((left == 0) | (self.o.ready & last)),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [left.eq(left - beats), address.eq(address + (beats << beat_bits))]
        with m.If(self.i.ready):
            m.d.sync += [left.eq(Mux(self.i.valid, self.i.p.beats, 0)), address.eq(self.i.p.address)]
        return m

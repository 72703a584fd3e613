"""The AXI4 write manager."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .axi import BUFFERABLE, INCR, OKAY, axi4_write_signature
from .burst_splitter import MAX_BURST, burst_request

__all__ = ["AxiWriter"]


class AxiWriter(wiring.Component):
    """The AXI4 write manager. It takes a `burst`, then the beats of the burst from `data`, and reports the responses in order.

    The address is on the bus one cycle after the burst is taken, and a beat one cycle after the beat is taken. The address and
    the data are issued independently. The next burst is taken one cycle after the last beat. Burst A has two beats here, on a
    bus that never stalls::

        cycle          0    1    2    3    4    5
        burst          A    -    -    B    -    ..
        burst.ready    1    0    0    1    0    ..
        data           -    a0   a1   -    b0   ..
        data.ready     0    1    1    0    1    ..
        bus.awvalid    0    1    0    0    1    0
        bus.wvalid     0    0    1    1    0    1
        bus.wdata      -    -    a0   a1   -    b0

    Each response makes `answered` 1 for one cycle, with `error` if the response is not OKAY. Up to `outstanding` bursts are in
    flight.

    `flush` cancels all bursts. Bursts that AXI has accepted are completed, with `wstrb` 0, so that no byte is written. From the
    next cycle on no new burst is taken until the last response has arrived (`quiet`).

    Bursts carry the ID `id`. They wait after a reset until `id` is `settled`. Responses with the other ID belong to bursts from
    before the reset. They are accepted and discarded.

    Parameters
    ----------
    address_width, data_width : int
        Bits.
    outstanding : int
        Most bursts in flight.

    Members
    -------
    bus : AXI4 write channels, out
    burst : stream of bursts, in
    data : stream of data_width, in
        The beats of the bursts, in order.
    answered : 1, out
        The response to a burst has arrived.
    error : 1, out
        That response is not OKAY.
    id, settled : 1, in
        See :class:`hw.bus.transaction_id.TransactionId`.
    flush : 1, in
    quiet : 1, out
        No burst is in flight.
    beat : 1, out
        The bus accepts a beat.
    moves : 1, out
        A handshake happens on one of the channels.
    """

    def __init__(self, *, address_width, data_width, outstanding=16):
        self.data_width = data_width
        self.outstanding = outstanding
        super().__init__(
            {
                "bus": Out(axi4_write_signature(address_width=address_width, data_width=data_width)),
                "burst": In(stream.Signature(burst_request(address_width))),
                "data": In(stream.Signature(data_width)),
                "answered": Out(1),
                "error": Out(1),
                "id": In(1),
                "settled": In(1),
                "flush": In(1),
                "quiet": Out(1),
                "beat": Out(1),
                "moves": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        draining, answer = Signal(init=1), Signal()  # the store unit may be reset a cycle later than this
        pending = Signal(range(self.outstanding + 1))
        left = Signal(range(MAX_BURST + 1))  # beats of the burst that the data channel has not taken into its register
        active, last, full = Signal(), Signal(), Signal()
        m.d.comb += [
            bus.awsize.eq(exact_log2(self.data_width // 8)),
            bus.awburst.eq(INCR),
            bus.awcache.eq(BUFFERABLE),
            bus.bready.eq(1),
            bus.awid.eq(self.id),
            answer.eq(bus.bvalid & (bus.bid == self.id) & self.settled),
        ]

        # Address channel.
        take = Signal()
        m.d.comb += [
            self.burst.ready.eq(~active & (~bus.awvalid | bus.awready) & ~full & ~draining),
            take.eq(self.burst.valid & self.burst.ready),
        ]
        with m.If(bus.awready):
            m.d.sync += bus.awvalid.eq(0)
        with m.If(take):
            m.d.sync += bus.awvalid.eq(1)
        with m.If(self.burst.ready):
            m.d.sync += [bus.awaddr.eq(self.burst.p.address), bus.awlen.eq(self.burst.p.beats - 1)]

        # Data channel: one register, written in each cycle in which it is free, with or without data. While draining, beats
        # without strobes replace the data.
        room, give = Signal(), Signal()
        m.d.comb += [
            last.eq(left == 1),
            room.eq(active & (~bus.wvalid | bus.wready)),
            self.data.ready.eq(room & ~draining & ~self.flush),
            give.eq(room & (draining | (self.data.valid & ~self.flush))),
        ]
        with m.If(bus.wready):
            m.d.sync += bus.wvalid.eq(0)
        with m.If(give):
            m.d.sync += [
                bus.wvalid.eq(1),
                bus.wstrb.eq((~draining).replicate(self.data_width // 8)),
                bus.wlast.eq(last),
                left.eq(left - 1),
                active.eq(~last),
            ]
        with m.If(~bus.wvalid | bus.wready):
            m.d.sync += bus.wdata.eq(self.data.payload)
        with m.If(take):
            m.d.sync += [left.eq(self.burst.p.beats), active.eq(1)]

        m.d.comb += [
            self.answered.eq(answer & ~draining),
            self.error.eq(self.answered & (bus.bresp != OKAY)),
            self.quiet.eq(pending == 0),
            self.beat.eq(bus.wvalid & bus.wready),
            self.moves.eq((bus.awvalid & bus.awready) | self.beat | (bus.bvalid & bus.bready)),
        ]
        # `full` may be one cycle old: bursts are never taken in successive cycles.
        m.d.sync += [pending.eq(pending + take - answer), full.eq(pending == self.outstanding)]
        with m.If(self.flush):
            m.d.sync += draining.eq(1)
        with m.Elif(self.quiet & self.settled):
            m.d.sync += draining.eq(0)
        return m

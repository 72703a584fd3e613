"""The AXI4 write manager."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, Signature
from amaranth.utils import exact_log2

from ..spec.run_ports import manager_port
from .axi import BUFFERABLE, INCR, OKAY, axi4_write_signature
from .burst_splitter import MAX_BURST, burst_request, length_field
from .transaction_id import id_port

__all__ = ["AxiWriter", "write_client"]


def write_client(address_width, data_width):
    """Returns the signature of the client's port, seen from the client.

    Members
    -------
    burst : stream of bursts, out
    data : stream of data_width, out
        The beats of the bursts, in order.
    answered : 1, in
        The response to the oldest burst has arrived.
    error : 1, in
        That response is not OKAY.
    """
    return Signature(
        {
            "burst": Out(stream.Signature(burst_request(address_width))),
            "data": Out(stream.Signature(data_width)),
            "answered": In(1),
            "error": In(1),
        }
    )


class AxiWriter(wiring.Component):
    """The AXI4 write manager. It takes a burst from `client`, then the beats of the burst, and reports the responses in order.

    The address is on the bus one cycle after the burst is taken, and a beat one cycle after the beat is taken. The address and
    the data are issued independently. The next burst is taken one cycle after the last beat. Burst A has two beats here, on a
    bus that never stalls::

        cycle                 0    1    2    3    4    5
        client.burst          A    -    -    B    -    ..
        client.burst.ready    1    0    0    1    0    ..
        client.data           -    a0   a1   -    b0   ..
        client.data.ready     0    1    1    0    1    ..
        bus.awvalid           0    1    0    0    1    0
        bus.wvalid            0    0    1    1    0    1
        bus.wdata             -    -    a0   a1   -    b0

    In the cycle after a response, `client.answered` is 1, with `client.error` if the response is not OKAY. Up to `outstanding`
    bursts are in flight.

    `control.flush` cancels all bursts. AXI does not allow withdrawing a burst: each burst that was taken is completed. Its beats
    that were not on the bus yet have `wstrb` 0, so that they write no byte. From the next cycle on no new burst is taken until
    the last response has arrived (`control.quiet`).

    Bursts carry the ID `own.id`. They wait after a reset until the ID is `settled`. Responses with the other ID belong to bursts
    from before the reset. They are accepted and discarded.

    Parameters
    ----------
    address_width, data_width : int
        Bits.
    outstanding : int
        Most bursts in flight.
    cache, prot, id_width : int
        `AxCACHE` and `AxPROT` of all bursts; bits of an ID.

    Members
    -------
    bus : AXI4 write channels, out
    client : write client, in
        See :func:`write_client`.
    own : ID port, in
        See :func:`hw.bus.transaction_id.id_port`.
    control : manager port, in
        See :func:`hw.spec.run_ports.manager_port`.
    """

    def __init__(self, *, address_width, data_width, outstanding=16, cache=BUFFERABLE, prot=0, id_width=1):
        self.data_width = data_width
        self.outstanding = outstanding
        self.cache, self.prot = cache, prot
        super().__init__(
            {
                "bus": Out(axi4_write_signature(address_width=address_width, data_width=data_width, id_width=id_width)),
                "client": In(write_client(address_width, data_width)),
                "own": In(id_port()),
                "control": In(manager_port()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus, client, control = self.bus, self.client, self.control
        draining, answer = Signal(init=1), Signal()  # the store unit may be reset a cycle later than this
        pending = Signal(range(self.outstanding + 1))
        left = Signal(range(MAX_BURST + 1))  # beats of the burst that the data channel has not taken into its register
        active, last, full = Signal(), Signal(), Signal()
        m.d.comb += [
            bus.awsize.eq(exact_log2(self.data_width // 8)),
            bus.awburst.eq(INCR),
            bus.awcache.eq(self.cache),
            bus.awprot.eq(self.prot),
            bus.bready.eq(1),
            bus.awid.eq(self.own.id),
            answer.eq(bus.bvalid & (bus.bid == self.own.id) & self.own.settled),
        ]

        # Address channel.
        take = Signal()
        m.d.comb += [
            client.burst.ready.eq(~active & (~bus.awvalid | bus.awready) & ~full & ~draining),
            take.eq(client.burst.valid & client.burst.ready),
        ]
        with m.If(bus.awready):
            m.d.sync += bus.awvalid.eq(0)
        with m.If(take):
            m.d.sync += bus.awvalid.eq(1)
        with m.If(client.burst.ready):
            m.d.sync += [bus.awaddr.eq(client.burst.p.address), bus.awlen.eq(length_field(client.burst.p.beats))]

        # Data channel: one register, written in each cycle in which it is free, with or without data. While draining, beats
        # without strobes replace the data.
        room, give = Signal(), Signal()
        m.d.comb += [
            last.eq(left == 1),
            room.eq(active & (~bus.wvalid | bus.wready)),
            client.data.ready.eq(room & ~draining & ~control.flush),
            give.eq(room & (draining | (client.data.valid & ~control.flush))),
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
            m.d.sync += bus.wdata.eq(client.data.payload)
        with m.If(take):
            m.d.sync += [left.eq(client.burst.p.beats), active.eq(1)]

        m.d.comb += [
            control.quiet.eq(pending == 0),
            control.beat.eq(bus.wvalid & bus.wready),
            control.moves.eq((bus.awvalid & bus.awready) | control.beat | (bus.bvalid & bus.bready)),
        ]
        # Registers, as the bus and the client may be far apart.
        mine = answer & ~draining & ~control.flush
        m.d.sync += [client.answered.eq(mine), client.error.eq(mine & (bus.bresp != OKAY))]
        # `full` may be one cycle old: bursts are never taken in successive cycles.
        m.d.sync += [pending.eq(pending + take - answer), full.eq(pending == self.outstanding)]
        with m.If(control.flush):
            m.d.sync += draining.eq(1)
        with m.Elif(control.quiet & self.own.settled):
            m.d.sync += draining.eq(0)
        return m

"""The AXI4 read manager. It arbitrates the bus between three clients."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out, Signature
from amaranth.utils import exact_log2

from ..lib.checks import check_power_of_two
from ..spec.run_ports import manager_port
from .axi import BUFFERABLE, INCR, OKAY, axi4_read_signature
from .burst_splitter import MAX_BURST, burst_request, length_field
from .transaction_id import id_port

__all__ = ["AxiReader", "CLIENTS", "LOAD_LIMIT", "OUTSTANDING_READS", "read_client"]

#: Limits of a core: bursts in flight, and beats of loads in flight.
OUTSTANDING_READS, LOAD_LIMIT = 32, 4 * MAX_BURST

#: In the order of priority; `urgent` gives weights priority over loads.
CLIENTS = ("fetch", "load", "weights")


def read_client(address_width, data_width):
    """Returns the signature of a client's port, seen from the client. A client must have room for all data that it requests.

    Members
    -------
    request : stream of bursts, out
    answer.valid : 1, in
        `answer.data` is a beat. There is no backpressure.
    answer.error : 1, in
        A beat came with an error response; `answer.valid` is 0.
    answer.data : data_width, in
        The beat.
    """
    return Signature(
        {
            "request": Out(stream.Signature(burst_request(address_width))),
            "answer": In(Signature({"valid": Out(1), "error": Out(1), "data": Out(data_width)})),
        }
    )


class AxiReader(wiring.Component):
    """The AXI4 read manager of the clients `fetch`, `load` and `weights`. It issues bursts in the order of grant.

    A request is on the bus one cycle after its grant, and a beat reaches its client one cycle after it was on the bus.
    Throughput is one request a cycle and one beat a cycle. Up to `outstanding` bursts are in flight. Two loads of one beat each,
    on a bus that never stalls::

        cycle               0    1    2    ..   8    9    10
        load.request        A    B    -         -    -    -
        bus.arvalid         0    1    1         0    0    0
        bus.araddr          -    A    B         -    -    -
        bus.rvalid          0    0    0         1    1    0
        bus.rdata           -    -    -         a    b    -
        load.answer.valid   0    0    0         0    1    1
        load.answer.data    -    -    -         -    a    b

    `control.flush` cancels all requests. From the next cycle on no response reaches a client. A request on the bus stays until it
    is accepted, as AXI requires. New requests wait until the last response has arrived (`control.quiet`).

    Requests carry the ID `own.id`. They wait after a reset until the ID is `settled`. Responses with the other ID belong to
    requests from before the reset. They are accepted and discarded.

    Parameters
    ----------
    address_width, data_width : int
        Bits.
    outstanding : int
        Most bursts in flight; a power of two, at least 2.
    load_limit : int
        Most beats of `load` in flight; at least two bursts of the greatest length.
    cache, prot, id_width : int
        `AxCACHE` and `AxPROT` of all bursts; bits of an ID.

    Members
    -------
    bus : AXI4 read channels, out
    fetch, load, weights : read client, in
        See :func:`read_client`.
    own : ID port, in
        See :func:`hw.bus.transaction_id.id_port`.
    urgent : 1, in
        Weights have priority over loads.
    control : manager port, in
        See :func:`hw.spec.run_ports.manager_port`.
    """

    def __init__(
        self,
        *,
        address_width,
        data_width,
        outstanding=OUTSTANDING_READS,
        load_limit=LOAD_LIMIT,
        cache=BUFFERABLE,
        prot=0,
        id_width=1,
    ):
        check_power_of_two("outstanding", outstanding, 2)
        if not isinstance(load_limit, int) or load_limit < 2 * MAX_BURST:
            raise ValueError(f"load_limit must be at least {2 * MAX_BURST}, not {load_limit!r}")
        self.data_width = data_width
        self.outstanding = outstanding
        self.load_limit = load_limit
        self.cache, self.prot = cache, prot
        super().__init__(
            {
                "bus": Out(axi4_read_signature(address_width=address_width, data_width=data_width, id_width=id_width)),
                **{client: In(read_client(address_width, data_width)) for client in CLIENTS},
                "own": In(id_port()),
                "urgent": In(1),
                "control": In(manager_port()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus, control = self.bus, self.control
        clients = (self.fetch, self.load, self.weights)
        fetch, load, weights = (client.request for client in clients)
        draining, answer = Signal(init=1), Signal()  # the clients may be reset a cycle later than this
        owners = m.submodules.owners = fifo.SyncFIFO(width=2, depth=self.outstanding)

        m.d.comb += [
            bus.arsize.eq(exact_log2(self.data_width // 8)),
            bus.arburst.eq(INCR),
            bus.arcache.eq(self.cache),
            bus.arprot.eq(self.prot),
            bus.rready.eq(1),
            bus.arid.eq(self.own.id),
            answer.eq(bus.rvalid & (bus.rid == self.own.id) & self.own.settled),
        ]
        free, asking, last = Signal(), Signal(), Signal()
        loads = Signal(range(self.load_limit + 1))
        loads_full = Signal()
        room = Signal(init=1)  # `owners.w_rdy`, from a register
        m.d.comb += free.eq((~bus.arvalid | bus.arready) & room & ~draining)
        m.d.sync += room.eq(last | (room & ~((owners.level == self.outstanding - 1) & owners.w_en)))
        with m.If(bus.arready):
            m.d.sync += bus.arvalid.eq(0)

        # The `ready` of a client depends on the other clients' `valid`, and not on the client's own `valid`.
        loading, chosen = Signal(), Signal(2)
        m.d.comb += [
            loading.eq(load.valid & ~loads_full),
            fetch.ready.eq(free),
            load.ready.eq(free & ~fetch.valid & ~loads_full & ~(self.urgent & weights.valid)),
            weights.ready.eq(free & ~fetch.valid & (self.urgent | ~loading)),
            asking.eq(fetch.valid | loading | weights.valid),
            owners.w_en.eq(free & asking),
            owners.w_data.eq(chosen),
        ]
        with m.If(fetch.valid):
            m.d.comb += chosen.eq(CLIENTS.index("fetch"))
        with m.Elif(loading & ~(self.urgent & weights.valid)):
            m.d.comb += chosen.eq(CLIENTS.index("load"))
        with m.Else():
            m.d.comb += chosen.eq(CLIENTS.index("weights"))
        request = Array(client.request.payload for client in clients)[chosen]
        with m.If(free):
            m.d.sync += [bus.arvalid.eq(asking), bus.araddr.eq(request.address), bus.arlen.eq(length_field(request.beats))]

        # Data does not stall requests, so without a limit a long load would queue up before urgent weights. In the cycle of a
        # grant, `full` counts the burst as one of the greatest length; `taken` adds its actual beats one cycle later.
        asked, load_beat, full = Signal(), Signal(), Signal()
        taken, present = Signal.like(load.p.beats), Signal(range(self.load_limit + MAX_BURST + 1))
        most = self.load_limit - MAX_BURST
        m.d.comb += [
            asked.eq(load.valid & load.ready),
            load_beat.eq(answer & (owners.r_data == CLIENTS.index("load"))),
            present.eq(loads + taken),
            full.eq(
                Mux(
                    asked,
                    Mux(load_beat, present > most - MAX_BURST + 1, present > most - MAX_BURST),
                    Mux(load_beat, present > most + 1, present > most),
                )
            ),
        ]
        m.d.sync += [taken.eq(Mux(asked, load.p.beats, 0)), loads.eq(present - load_beat), loads_full.eq(full)]

        # Responses arrive in the order of the requests: each belongs to the oldest owner.
        m.d.comb += [
            last.eq(answer & bus.rlast),
            owners.r_en.eq(last),
            control.quiet.eq(~owners.r_rdy),
            control.beat.eq(bus.rvalid & bus.rready),
            control.moves.eq((bus.arvalid & bus.arready) | control.beat),
        ]
        beat_data = Signal.like(bus.rdata)
        m.d.sync += beat_data.eq(bus.rdata)
        for index, client in enumerate(clients):
            mine = answer & (owners.r_data == index) & ~draining & ~control.flush
            m.d.sync += [client.answer.valid.eq(mine & (bus.rresp == OKAY)), client.answer.error.eq(mine & (bus.rresp != OKAY))]
            m.d.comb += client.answer.data.eq(beat_data)
        with m.If(control.flush):
            m.d.sync += draining.eq(1)
        with m.Elif(control.quiet & self.own.settled):
            m.d.sync += draining.eq(0)
        return m

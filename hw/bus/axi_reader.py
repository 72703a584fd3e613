"""The AXI4 read manager: bursts of three clients on one bus."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .axi import OKAY, axi4_read_signature
from .burst_splitter import MAX_BURST, burst_request

__all__ = ["AxiReader", "CLIENTS", "LOAD_LIMIT", "OUTSTANDING_READS"]

#: Bursts under way in a core, and beats of loads among them.
OUTSTANDING_READS, LOAD_LIMIT = 32, 4 * MAX_BURST

#: In the order of priority, but that `urgent` lifts the weights over the loads.
CLIENTS = ("fetch", "load", "weights")


class AxiReader(wiring.Component):
    """Reads bursts for the clients `fetch`, `load` and `weights`, in the order of grant.

    A client makes sure of room before it asks: data comes back as `<client>_valid` strobes that cannot be refused, a beat
    a cycle, with `data`, one cycle after it was on the bus. A beat with an error response comes as `<client>_error`
    instead. Up to `outstanding` bursts are under way. A request is on the bus one cycle after its grant.

    `flush` gives up what was asked: what comes from the next cycle on is delivered to nobody, a request on the bus stays
    until it is accepted, as AXI demands, and new ones wait until the last answer is in (`quiet`).

    Requests go out with the ID `id`, once it is `settled` after a reset. An answer with another one, to what was asked before
    the reset, is taken and counts nowhere.

    Parameters
    ----------
    address_width, data_width : int
        Bits.
    outstanding : int
        Bursts under way, a power of two.
    load_limit : int
        Beats of `load` among them, at least two of the longest bursts.
    """

    def __init__(self, *, address_width, data_width, outstanding=OUTSTANDING_READS, load_limit=LOAD_LIMIT):
        self.data_width = data_width
        self.outstanding = outstanding
        self.load_limit = load_limit
        super().__init__({
            "bus": Out(axi4_read_signature(address_width=address_width, data_width=data_width)),
            **{client: In(stream.Signature(burst_request(address_width))) for client in CLIENTS},
            **{f"{client}_valid": Out(1) for client in CLIENTS},
            **{f"{client}_error": Out(1) for client in CLIENTS},
            "data": Out(data_width), "id": In(1), "settled": In(1), "urgent": In(1), "flush": In(1), "quiet": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        draining, answer = Signal(), Signal()
        owners = m.submodules.owners = fifo.SyncFIFO(width=2, depth=self.outstanding)

        m.d.comb += [
            bus.arsize.eq(exact_log2(self.data_width // 8)),
            bus.arburst.eq(0b01),
            bus.arcache.eq(0b0011),
            bus.rready.eq(1),
            bus.arid.eq(self.id),
            answer.eq(bus.rvalid & (bus.rid == self.id) & self.settled),
        ]
        free, asking, last = Signal(), Signal(), Signal()
        loads = Signal(range(self.load_limit + 1))
        loads_full = Signal()
        room = Signal(init=1)       # `owners.w_rdy`, from a register
        m.d.comb += free.eq((~bus.arvalid | bus.arready) & room & ~draining)
        m.d.sync += room.eq(last | (room & ~((owners.level == self.outstanding - 1) & owners.w_en)))
        with m.If(bus.arready):
            m.d.sync += bus.arvalid.eq(0)

        # A client's turn depends on what the others ask, not on whether it asks itself: `ready` is not behind its own `valid`.
        loading, chosen = Signal(), Signal(2)
        m.d.comb += [
            loading.eq(self.load.valid & ~loads_full),
            self.fetch.ready.eq(free),
            self.load.ready.eq(free & ~self.fetch.valid & ~loads_full & ~(self.urgent & self.weights.valid)),
            self.weights.ready.eq(free & ~self.fetch.valid & (self.urgent | ~loading)),
            asking.eq(self.fetch.valid | loading | self.weights.valid),
            owners.w_en.eq(free & asking),
            owners.w_data.eq(chosen),
        ]
        with m.If(self.fetch.valid):
            m.d.comb += chosen.eq(CLIENTS.index("fetch"))
        with m.Elif(loading & ~(self.urgent & self.weights.valid)):
            m.d.comb += chosen.eq(CLIENTS.index("load"))
        with m.Else():
            m.d.comb += chosen.eq(CLIENTS.index("weights"))
        request = Array(getattr(self, client).payload for client in CLIENTS)[chosen]
        with m.If(free):
            m.d.sync += [bus.arvalid.eq(asking), bus.araddr.eq(request.address), bus.arlen.eq(request.beats - 1)]

        # Requests are not held back by data: without a limit, a long load would queue up in front of urgent weights. A burst
        # counts as the longest until its beats do, in the cycle after next.
        asked, beat, full = Signal(), Signal(), Signal()
        taken, present = Signal.like(self.load.p.beats), Signal(range(self.load_limit + MAX_BURST + 1))
        most = self.load_limit - MAX_BURST
        m.d.comb += [
            asked.eq(self.load.valid & self.load.ready),
            beat.eq(answer & (owners.r_data == CLIENTS.index("load"))),
            present.eq(loads + taken),
            full.eq(Mux(asked, Mux(beat, present > most - MAX_BURST + 1, present > most - MAX_BURST),
                        Mux(beat, present > most + 1, present > most))),
        ]
        m.d.sync += [taken.eq(Mux(asked, self.load.p.beats, 0)), loads.eq(present - beat), loads_full.eq(full)]

        # Answers come in the order of the requests: each belongs to the oldest owner.
        m.d.comb += [
            last.eq(answer & bus.rlast),
            owners.r_en.eq(last),
            self.quiet.eq(~owners.r_rdy),
        ]
        m.d.sync += self.data.eq(bus.rdata)
        for index, client in enumerate(CLIENTS):
            mine = answer & (owners.r_data == index) & ~draining & ~self.flush
            m.d.sync += [
                getattr(self, f"{client}_valid").eq(mine & (bus.rresp == OKAY)),
                getattr(self, f"{client}_error").eq(mine & (bus.rresp != OKAY)),
            ]
        with m.If(self.flush):
            m.d.sync += draining.eq(1)
        with m.Elif(self.quiet):
            m.d.sync += draining.eq(0)
        return m

"""The unit that executes RING and connects a core to a ring of cores."""

from amaranth import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from ..bus.axi import axi4_stream_signature
from ..lib.hierarchy import instantiate
from ..spec.isa import Fault
from ..spec.memory_ports import client_port
from ..spec.operations import link_user_layout, ring_layout
from ..spec.run_ports import ring_events, ring_links, ring_position
from ..spec.unit_ports import unit_fault_port, unit_port
from .link_fifo import LinkFifo
from .ring_lane import RingLane
from .ring_sequencer import RingSequencer, ring_task

__all__ = ["RingUnit"]


class RingUnit(wiring.Component):
    """The unit that executes RING operations, one at a time. An operation is `done` when its last vector is written and sent.

    The latency of a vector is `latency` + 1 cycles, from the handshake at `received` until it is offered at `sent`. Each own
    vector is read once, and each result is written once. All state except the links' is reset in the second cycle in which
    `running` is 0. Received vectors are kept, since the neighbour may be one run ahead, and an offered vector stays offered.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    running : 1, in
        A run is in progress. Outside a run, the unit accepts no operation from the second cycle on, and does not access the
        unified buffer from the third cycle on. `running` must be 0 for at least two cycles between runs.
    position : ring position, in
        See :func:`hw.spec.run_ports.ring_position`.
    port : unit port of :func:`hw.spec.operations.ring_layout`, in
    buffer : client port, out
        To the vector port of the unified buffer; see :func:`hw.spec.memory_ports.client_port`. With `read` and `write`, the
        request is a read.
    received, sent : AXI4-Stream of 16 n bits, in and out
        `tuser` is :func:`hw.spec.operations.link_user_layout`.
    links : ring links, out
        See :func:`hw.spec.run_ports.ring_links`.
    fault : unit fault port, out
        RING: a received vector differs from the task in segment, mode or round, or in the end of its segment.
    events : ring events, out
        See :func:`hw.spec.run_ports.ring_events`.
    """

    #: Tasks whose own vectors are read ahead.
    prefetch = 4

    def __init__(self, *, config):
        self.config = config
        self.layout = ring_layout(config)
        self.latency = config.latency
        width = config.vector_width
        link = axi4_stream_signature(data_width=width, user_width=link_user_layout().size)
        super().__init__(
            {
                "running": In(1),
                "position": In(ring_position()),
                "port": In(unit_port(self.layout)),
                "buffer": Out(client_port(16, config.n)),
                "received": In(link),
                "sent": Out(link),
                "links": Out(ring_links()),
                "fault": Out(unit_fault_port(self.layout)),
                "events": Out(ring_events()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        buffer = self.buffer
        active = Signal()  # `running`, registered near the logic that it gates
        m.d.sync += active.eq(self.running)
        in_run = ResetInserter(~active)
        width = self.config.vector_width

        marks = link_user_layout().size + 1
        m.submodules.link = link = LinkFifo(width=width + marks, depth=self.config.ring_depth)
        m.d.comb += [
            link.i.valid.eq(self.received.tvalid),
            link.i.payload.eq(Cat(self.received.tdata, self.received.tuser, self.received.tlast)),
            self.received.tready.eq(link.i.ready),
            link.flush.eq(self.position.flush),
            self.links.held.eq(link.holds),
            self.links.offered.eq(self.sent.tvalid),
        ]

        # One operation at a time: all of its writes precede the reads of the next operation.
        busy, tag = Signal(), Signal(self.layout["tag"].shape)
        m.submodules.sequencer = in_run(sequencer := RingSequencer(config=self.config))
        m.d.comb += [
            sequencer.rank.eq(self.position.rank),
            sequencer.size.eq(self.position.size),
            sequencer.i.payload.eq(self.port.op.payload),
            sequencer.i.valid.eq(self.port.op.valid & ~busy & active),
            self.port.op.ready.eq(sequencer.i.ready & ~busy & active),
        ]
        with m.If(self.port.op.valid & self.port.op.ready):
            m.d.sync += [busy.eq(1), tag.eq(self.port.op.p.tag)]

        # Own vectors are read ahead while their tasks are queued, so that a late `grant` stalls no task. The vectors never
        # outnumber the queued tasks, so their FIFO cannot overflow.
        task = sequencer.o.p
        flags = data.StructLayout({name: shape for name, shape in ring_task(self.config).members.items() if name != "source"})
        m.submodules.tasks = in_run(tasks := SyncFIFOBuffered(width=flags.size, depth=self.prefetch))
        m.submodules.sources = in_run(sources := SyncFIFO(width=len(task.source), depth=self.prefetch))
        m.submodules.vectors = in_run(vectors := SyncFIFO(width=width, depth=self.prefetch))
        queued, granted, coming = Signal(flags), Signal(), Signal()
        m.d.comb += [
            *(queued[name].eq(task[name]) for name, _ in flags),
            sequencer.o.ready.eq(tasks.w_rdy),
            tasks.w_en.eq(sequencer.o.valid),
            tasks.w_data.eq(queued.as_value()),
            sources.w_en.eq(sequencer.o.valid & tasks.w_rdy & task.own),
            sources.w_data.eq(task.source),
            buffer.read.eq(sources.r_rdy),
            granted.eq(buffer.read & buffer.grant),
            sources.r_en.eq(buffer.grant),
            vectors.w_en.eq(coming),
            vectors.w_data.eq(buffer.operand),
        ]
        m.d.sync += coming.eq(granted)

        # A task starts when its operands are available. All tasks in the pipeline advance together, unless `spared` is 1.
        head = data.View(flags, tasks.r_data)
        stages = [Signal(flags, name=f"stage_{stage}") for stage in range(self.latency)]
        valid = [Signal(name=f"valid_{stage}") for stage in range(self.latency)]
        begins, misplaced = Signal(), Signal()
        spared, advance, may_begin = Signal(), Signal(init=1), Signal()  # one register each, due to the fan-out
        there = tasks.r_rdy & (~head.own | vectors.r_rdy) & (~head.receive | link.o.valid)
        m.d.comb += [
            misplaced.eq(there & head.receive & (link.o.payload[width:] != Cat(head.user, head.last))),
            begins.eq(there & ~misplaced & may_begin),
            tasks.r_en.eq(begins),
            vectors.r_en.eq(begins & head.own),
            link.o.ready.eq(begins & head.receive),
        ]
        line, in_line = (head, *stages), (begins, *valid)
        with m.If(advance):
            m.d.sync += [
                *(following.eq(before) for before, following in zip(line, stages)),
                *(following.eq(before) for before, following in zip(in_line, valid)),
            ]

        # The oldest vector is sent and written, in either order. Reads have priority over writes: they run ahead while their FIFO
        # has room, so that the port is never idle between reads and writes. `grant` and `tready` arrive late in the cycle: a
        # vector that does not leave at once moves to the skid register `spare`, and the pipeline stalls from the next cycle.
        result, spare = Signal(width), Signal(width, reset_less=True)  # of the last stage; the skid register
        spare_flags, out = Signal(flags), Signal(flags)
        to_send, to_write = Signal(), Signal()  # pending for the oldest vector
        written, leaves, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            out.eq(Mux(spared, spare_flags, stages[-1])),
            buffer.vector.eq(Mux(spared, spare, result)),
            self.sent.tvalid.eq(to_send),
            self.sent.tdata.eq(buffer.vector),
            self.sent.tuser.eq(out.user),
            self.sent.tlast.eq(out.last),
            buffer.write.eq(to_write),
            written.eq(to_write & ~buffer.read & buffer.grant),
            buffer.row.eq(Mux(buffer.read, sources.r_data, out.target)),
            leaves.eq((~to_send | self.sent.tready) & (~to_write | written)),
            ends.eq(leaves & (spared | valid[-1]) & out.end),
        ]
        with m.If(~spared):
            m.d.sync += [spare.eq(result), spare_flags.eq(stages[-1])]
        after, is_after = Signal(flags), Mux(spared, valid[-1], in_line[-2])
        m.d.comb += after.eq(Mux(spared, stages[-1], line[-2]))
        m.d.sync += [
            spared.eq(~leaves),
            advance.eq(leaves),
            may_begin.eq(leaves & self.running),
            to_send.eq(Mux(leaves, is_after & after.send, to_send & ~self.sent.tready)),
            to_write.eq(Mux(leaves, is_after & after.write, to_write & ~written)),
            self.port.done.eq(ends & active),
        ]
        with m.If(ends):
            m.d.sync += busy.eq(0)
        with m.If(~active):
            still = to_send & ~self.sent.tready
            m.d.sync += [
                *(other.eq(0) for other in (*valid, to_write, busy, spare_flags.end)),
                *(other.eq(still) for other in (to_send, spared)),
                advance.eq(~still),
                may_begin.eq(~still & self.running),
            ]

        for lane in range(width // 32):
            instantiate(
                m,
                platform,
                lambda: RingLane(latency=self.latency),
                name=f"lane_{lane}",
                module="tpu_ring_lane",
                own=vectors.r_data.word_select(lane, 32),
                received=link.o.payload.word_select(lane, 32),
                take_own=head.own,
                advance=advance,
                added=stages[-1].own & stages[-1].receive,
                o=result.word_select(lane, 32),
            )

        m.d.sync += [
            self.fault.valid.eq(misplaced & active),
            self.events.sends.eq(self.sent.tvalid & self.sent.tready),
            self.events.takes.eq(link.o.valid & link.o.ready),
            self.events.moves.eq(granted | begins | (self.sent.tvalid & self.sent.tready) | written),
        ]
        m.d.comb += [self.port.done_slot.eq(tag.slot), self.fault.cause.eq(Fault.RING), self.fault.slot.eq(tag.slot)]
        return m

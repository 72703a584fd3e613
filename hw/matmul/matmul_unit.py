"""The sequencer of the matrix multiply unit: from MATMUL operations to the control signals of buffers and accumulators."""

from amaranth import Module, Signal
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out, connect

from ..lib.delay_line import DelayLine
from ..lib.skid_buffer import SkidBuffer
from ..spec.memory_ports import pass_port, tiles_port
from ..spec.unit_ports import interlock_port, issue_port, unit_port
from .pass_generator import PassGenerator
from .row_issuer import RowIssuer

__all__ = ["MatmulUnit"]


class MatmulUnit(wiring.Component):
    """The sequencer of the systolic array. It executes MATMUL operations in order and overlaps successive operations.

    Throughput is one row a cycle. A row that is issued in cycle t has these steps in column 0; column c is c cycles later::

        t                                   its vector is read from the unified buffer
        t + 1 + lead - read_latency         its sums are read from the accumulators
        t + 1 + lead                        its sums enter the array
        t + 1 + lead + n * latency          its sums are written back to the accumulators

    `done` comes one cycle before the last sum of an operation is written in the last column. This is safe: an instruction that
    waits for the operation reads no sooner than two cycles after `done`.

    Parameters
    ----------
    n : int
        Rows and columns of the array.
    lead, latency : int
        Latencies of a cell; see :func:`hw.spec.cell_stages.split_stages`.
    read_latency : int
        Read latency of the accumulators, in cycles; at most 1 + `lead`.
    matmul, pass_ : layouts
        :func:`hw.spec.operations.matmul_layout` and :func:`hw.spec.operations.pass_layout`.

    Members
    -------
    port : unit port of matmul, in
        See :func:`hw.spec.unit_ports.unit_port`.
    interlock : interlock port, in
        To the dispatcher; see :func:`hw.spec.unit_ports.interlock_port`.
    tiles : tiles port, out
        To the weight FIFO; see :func:`hw.spec.memory_ports.tiles_port`.
    address : row of the unified buffer, out
    sums : pass port, out
        To the accumulators; see :func:`hw.spec.memory_ports.pass_port`.
    issue : issue port, out
        See :func:`hw.spec.unit_ports.issue_port`.
    """

    #: Passes that are prepared: the pass whose rows are issued, and two in the queue after it.
    ready_passes = 3

    def __init__(self, *, n, lead, latency, read_latency, matmul, pass_):
        self.n = n
        self.lead = lead
        self.latency = latency
        self.read_latency = read_latency
        self.matmul = matmul
        self.pass_ = pass_
        self.slot_shape = matmul["tag"].shape["slot"].shape
        super().__init__(
            {
                "port": In(unit_port(matmul)),
                "interlock": In(interlock_port(1 << pass_["slot"].width)),
                "tiles": Out(tiles_port()),
                "address": Out(pass_["buffer"].shape),
                "sums": Out(pass_port(pass_["acc"].shape, pass_["bias"].shape)),
                "issue": Out(issue_port()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, interlock, issue = self.port.op, self.interlock, self.issue
        m.submodules.generator = generator = PassGenerator(matmul=self.matmul, pass_=self.pass_)
        m.submodules.passes = passes = SkidBuffer(payload=self.pass_)
        m.submodules.issuer = issuer = RowIssuer(pass_=self.pass_)
        m.submodules.slots = slots = fifo.SyncFIFOBuffered(width=self.slot_shape, depth=4)
        connect(m, generator.o, passes.i)
        connect(m, passes.o, issuer.i)
        m.d.comb += [
            generator.i.payload.eq(op.payload),
            generator.i.valid.eq(op.valid & slots.w_rdy),
            op.ready.eq(generator.i.ready & slots.w_rdy),
            slots.w_en.eq(op.valid & op.ready),
            slots.w_data.eq(op.p.tag.slot),
            issuer.blocked.eq(interlock.blocked),
            interlock.held.eq(issuer.held),
            interlock.held_slot.eq(issuer.head_slot),
            issuer.coming.eq(self.tiles.coming),
            self.tiles.switch.eq(issuer.switch),
            issue.waits_weights.eq(issuer.waits_weights),
            issue.waits_sums.eq(issuer.waits_sums),
            issue.issued.eq(issuer.row_valid),
            self.address.eq(issuer.row.buffer),
            issue.idle.eq(~issuer.row_valid & ~passes.o.valid & ~generator.o.valid),
        ]

        # Sums are read from the accumulators later than vectors from the buffer: a product takes `lead` cycles.
        sums = data.StructLayout({"row": issuer.row.acc.shape(), "bias": issuer.row.bias.shape(), "start": 1})
        read = Signal(sums)
        m.d.comb += [read.row.eq(issuer.row.acc), read.bias.eq(issuer.row.bias), read.start.eq(issuer.row.start)]
        for stage in range(1 + self.lead - self.read_latency):
            delayed = Signal(sums, name=f"read_{stage}", reset_less=True)
            m.d.sync += delayed.eq(read)
            read = delayed
        m.d.comb += [self.sums.read_row.eq(read.row), self.sums.bias_row.eq(read.bias), self.sums.start.eq(read.start)]

        # Rows return in the order and at the rate of their issue. `written_first` and `written_last` come `early` cycles before
        # the write: the pass that they release reads its first sums only `early` cycles later.
        way = 1 + self.lead + self.n * self.latency
        early = min(3 + self.lead - self.read_latency, way - 2)
        returned = data.StructLayout({"row": issuer.row.acc.shape(), "first": 1, "last": 1, "last_pass": 1})
        entering, leaving = Signal(returned), Signal(returned)
        m.submodules.flight = flight = DelayLine(cycles=way - early, width=returned.size)
        ended = Signal(early + self.n - 2)
        m.d.comb += [
            entering.row.eq(issuer.row.acc),
            entering.first.eq(issuer.row.first),
            entering.last.eq(issuer.row.last),
            entering.last_pass.eq(issuer.row.last_pass),
            flight.i_valid.eq(issuer.row_valid),
            flight.i_data.eq(entering.as_value()),
            leaving.as_value().eq(flight.o_data),
            issuer.written_first.eq(flight.o_valid & leaving.first),
            issuer.written_last.eq(flight.o_valid & leaving.last),
            self.port.done.eq(ended[-1]),
            self.port.done_slot.eq(slots.r_data),
            slots.r_en.eq(self.port.done),
        ]
        writing, row = flight.o_valid, leaving.row
        for stage in range(early):
            delayed, delayed_row = Signal(name=f"writing_{stage}"), Signal.like(row, name=f"written_row_{stage}", reset_less=True)
            m.d.sync += [delayed.eq(writing), delayed_row.eq(row)]
            writing, row = delayed, delayed_row
        m.d.comb += [self.sums.write.eq(writing), self.sums.write_row.eq(row)]
        m.d.sync += ended.eq((ended << 1) | (flight.o_valid & leaving.last & leaving.last_pass))
        return m

"""The unit that executes STORE: it moves data from the unified buffer to host memory."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from ..lib.short_fifo import ShortFifo
from ..spec.isa import Fault
from ..spec.memory_ports import client_port, part_port
from ..spec.unit_ports import unit_fault_port, unit_port
from .axi_writer import write_client
from .burst_splitter import BurstSplitter

__all__ = ["StoreUnit"]


class StoreUnit(wiring.Component):
    """The unit that executes STORE and STORE_UPDATE operations, in order. An operation is `done` with the response to its last
    burst.

    `read` with `row` requests a vector from the unified buffer; the vector is valid `latency` cycles after `grant`. At most
    `prefetch` vectors wait for the bus. The slot of a vector is free again `prefetch` cycles after the read. Throughput is
    therefore one vector a cycle if the bus is as wide as a vector. `host.answered` must come at least
    two cycles after its burst was taken.

    Parameters
    ----------
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.
    bus_width, vector_width : int
        Bits; a vector is a whole number of beats.
    outstanding : int
        Most bursts in flight, a power of two, at least 2.
    latency : int
        Read latency of the unified buffer in cycles, 1 or 2; 1 if the layout has `part`.

    Members
    -------
    port : unit port of transfer, in
        See :func:`hw.spec.unit_ports.unit_port`.
    buffer : client port without writes, out
        To the vector port of the unified buffer; see :func:`hw.spec.memory_ports.client_port`.
    updates : part port, out
        To the update memory; see :func:`hw.spec.memory_ports.part_port`. Only if the layout has `part`. A read is always granted.
    host : write client, out
        See :func:`hw.bus.axi_writer.write_client`.
    fault : unit fault port, out
        An error response: BUS_WRITE.
    """

    def __init__(self, *, transfer, bus_width, vector_width, outstanding, latency=1):
        self.transfer = transfer
        self.bus_width = bus_width
        self.vector_width = vector_width
        self.outstanding = outstanding
        self.latency = latency
        self.prefetch = 3 + latency
        self._address_width = transfer["address"].width
        self._has_parts = "part" in transfer.members
        row, n = transfer["row"].shape, vector_width // 16
        super().__init__(
            {
                "port": In(unit_port(transfer)),
                "buffer": Out(client_port(row, n, writes=False)),
                **({"updates": Out(part_port(row, n))} if self._has_parts else {}),
                "host": Out(write_client(self._address_width, bus_width)),
                "fault": Out(unit_fault_port(transfer)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, host = self.port.op, self.host
        ratio = self.vector_width // self.bus_width
        m.submodules.splitter = splitter = BurstSplitter(
            address_width=self._address_width,
            bus_bytes=self.bus_width // 8,
            beats_width=self.transfer["vectors"].width + exact_log2(ratio),
        )
        # Its flags are registers: `host.data.ready` arrives late in the cycle.
        m.submodules.vectors = vectors = ShortFifo(shape=self.vector_width, depth=1 << bits_for(self.prefetch - 1))

        # The bursts and the rows of an operation are issued independently.
        tag = self.transfer["tag"].shape
        current = Signal(tag)
        rows_left = Signal(self.transfer["vectors"].shape)
        reading, accept = Signal(), Signal()
        m.d.comb += [
            accept.eq(op.valid & splitter.i.ready & ~reading),
            op.ready.eq(accept),
            splitter.i.valid.eq(accept),
            splitter.i.p.address.eq(op.p.address),
            splitter.i.p.beats.eq(op.p.vectors << exact_log2(ratio)),
        ]
        with m.If(accept):
            m.d.sync += current.eq(op.p.tag)

        # Rows are read while places are free. A read takes a place, which is free again one cycle after its vector has left.
        # `taken` arrives late in the cycle, so both next states are computed beforehand.
        places, final = Signal(range(self.prefetch + 1), init=self.prefetch), Signal()
        taken, coming, come, leaves, left = Signal(), Signal(), Signal(), Signal(), Signal()
        read, granted, operand = self.buffer.read, self.buffer.grant, self.buffer.operand
        if self._has_parts:
            read = Signal()
            granted, operand = self._read_parts(m, op, accept, read)
        m.d.comb += taken.eq(read & granted)
        read_out = taken
        for stage in range(self.latency - 1):
            delayed = Signal(name=f"read_out_{stage}")
            m.d.sync += delayed.eq(read_out)
            read_out = delayed
        m.d.sync += [coming.eq(read_out), come.eq(coming), left.eq(leaves)]
        with m.If(taken):
            m.d.sync += [
                places.eq(places - 1 + left),
                reading.eq(~final),
                read.eq(~final & ((places != 1) | left)),
                rows_left.eq(rows_left - 1),
                final.eq(rows_left == 2),
                self.buffer.row.eq(self.buffer.row + 1),
            ]
        with m.Else():
            m.d.sync += [
                places.eq(places + left),
                reading.eq(accept | reading),
                read.eq((accept | reading) & ((places != 0) | left)),
            ]
        with m.If(accept):
            m.d.sync += [rows_left.eq(op.p.vectors), final.eq(op.p.vectors == 1), self.buffer.row.eq(op.p.row)]

        # A vector enters the register `held` first: data of a block RAM arrives late in the cycle, and the RAM may be far away
        # from the queue. From `held` it enters the queue, and also bypasses an empty queue. A bypassed vector is `stale` in the
        # queue and is dropped there.
        beat, held = Signal(range(max(2, ratio))), Signal(self.vector_width, reset_less=True)
        stale, waits = Signal(), Signal()
        m.d.sync += [held.eq(operand), stale.eq(come & ~waits & leaves)]
        m.d.comb += [
            waits.eq(vectors.r_rdy & ~stale),
            host.data.valid.eq(waits | come),
            host.data.payload.eq(Mux(waits, vectors.r_data, held).word_select(beat, self.bus_width)),
            leaves.eq(host.data.valid & host.data.ready & (beat == ratio - 1)),
            vectors.r_en.eq(vectors.r_rdy & (stale | leaves)),
            vectors.w_en.eq(come),
            vectors.w_data.eq(held),
        ]
        with m.If(host.data.valid & host.data.ready):
            m.d.sync += beat.eq(0 if ratio == 1 else beat + 1)

        # Responses arrive in the order of the bursts.
        owner = data.StructLayout({"tag": tag, "last": 1})
        m.submodules.owners = owners = ShortFifo(shape=owner, depth=self.outstanding)
        oldest = owners.r_data
        m.d.comb += [
            host.burst.payload.eq(splitter.o.payload),
            host.burst.valid.eq(splitter.o.valid & owners.w_rdy),
            splitter.o.ready.eq(host.burst.ready & owners.w_rdy),
            owners.w_data.tag.eq(current),
            owners.w_data.last.eq(splitter.o.p.last),
            owners.w_en.eq(splitter.o.valid & splitter.o.ready),
            owners.r_en.eq(host.answered),
            self.port.done.eq(host.answered & oldest.last),
            self.port.done_slot.eq(oldest.tag.slot),
            self.fault.valid.eq(host.error),
            self.fault.cause.eq(Fault.BUS_WRITE),
            self.fault.slot.eq(oldest.tag.slot),
        ]
        return m

    def _read_parts(self, m, op, accept, read):
        """Divides the requests `read` between the unified buffer and the update memory. Returns the grant, and the vector."""
        updates, buffer, part, was_part = self.updates, self.buffer, Signal(2), Signal()
        is_part = part.any()
        with m.If(accept):
            m.d.sync += part.eq(op.p.part)
        m.d.sync += was_part.eq(is_part)
        m.d.comb += [
            buffer.read.eq(read & ~is_part),
            updates.read.eq(read & is_part),
            updates.row.eq(buffer.row),
            updates.part.eq(part),
        ]
        return is_part | buffer.grant, Mux(was_part, updates.vector, buffer.operand)

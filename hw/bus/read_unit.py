"""The unit that executes LOAD, LOAD_BIAS and LOAD_WEIGHTS: it moves data from host memory to the core."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from ..lib.short_fifo import ShortFifo
from ..lib.width_converter import WidthConverter
from ..spec.isa import Fault, Half
from ..spec.memory_ports import loads_port
from ..spec.unit_ports import unit_fault_port, unit_port
from .axi_reader import read_client
from .burst_splitter import MAX_BURST, BurstSplitter

__all__ = ["ReadUnit"]


class ReadUnit(wiring.Component):
    """The unit that executes transfers from host memory, in order. It requests later transfers while earlier data is in flight.

    A vector leaves in the cycle in which its last beat arrives.

    Parameters
    ----------
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.
    bus_width, vector_width : int
        Bits; a vector is a whole number of beats.
    longest : int
        Beats of the longest burst.

    Members
    -------
    port : unit port of transfer, in
        See :func:`hw.spec.unit_ports.unit_port`.
    host : read client, out
        See :func:`hw.bus.axi_reader.read_client`.
    vectors : loads port, out
        See :func:`hw.spec.memory_ports.loads_port`. `row` starts at the operation's row and rises by 1, or by 2 if `half` is not
        WHOLE. It is absent if the layout has no `row`.
    fault : unit fault port, out
        An error response: BUS_READ.
    """

    #: Most operations in flight behind the oldest one.
    under_way = 8

    def __init__(self, *, transfer, bus_width, vector_width, longest=MAX_BURST):
        self.transfer = transfer
        self.bus_width = bus_width
        self.vector_width = vector_width
        self.longest = longest
        address_width = transfer["address"].width
        self._address_width = address_width
        self._copied = [name for name in ("row", "bias", "half", "transpose", "weight_format") if name in transfer.members]
        super().__init__(
            {
                "port": In(unit_port(transfer)),
                "host": Out(read_client(address_width, bus_width)),
                "vectors": Out(loads_port(transfer, vector_width)),
                "fault": Out(unit_fault_port(transfer)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, answer, vectors = self.port.op, self.host.answer, self.vectors
        ratio = self.vector_width // self.bus_width
        m.submodules.splitter = splitter = BurstSplitter(
            address_width=self._address_width,
            bus_bytes=self.bus_width // 8,
            beats_width=self.transfer["vectors"].width + exact_log2(ratio),
            longest=self.longest,
        )
        m.submodules.converter = converter = WidthConverter(width=self.bus_width, ratio=ratio)
        expected = data.StructLayout({name: self.transfer[name].shape for name in ("tag", "vectors", *self._copied)})
        m.submodules.expected = queue = ShortFifo(shape=expected, depth=self.under_way)
        connect(m, splitter.o, flipped(self.host.request))

        m.d.comb += [
            splitter.i.p.address.eq(op.p.address),
            splitter.i.p.beats.eq(op.p.vectors << exact_log2(ratio)),
            splitter.i.valid.eq(op.valid & queue.w_rdy),
            op.ready.eq(splitter.i.ready & queue.w_rdy),
            *(queue.w_data[name].eq(op.p[name]) for name, _ in expected),
            queue.w_en.eq(op.valid & op.ready),
        ]

        # The oldest operation, with its remaining vectors; `final` is 1 if one vector remains.
        coming, head = queue.r_data, Signal(expected)
        present, final = Signal(), Signal()
        step = Mux(vectors.half == Half.WHOLE, 1, 2) if "half" in self._copied else 1
        m.d.comb += [
            converter.i.eq(answer.data),
            converter.i_valid.eq(answer.valid),
            vectors.write.eq(converter.o_valid),
            vectors.vector.eq(converter.o),
            *(getattr(vectors, name).eq(head[name]) for name in self._copied),
            self.port.done.eq(vectors.write & final),
            self.port.done_slot.eq(head.tag.slot),
            self.fault.valid.eq(answer.error),
            self.fault.cause.eq(Fault.BUS_READ),
            self.fault.slot.eq(head.tag.slot),
        ]
        if "weight_format" in self._copied:
            m.d.comb += vectors.last.eq(final)
        with m.If(self.port.done | ~present):
            m.d.comb += queue.r_en.eq(queue.r_rdy)
            m.d.sync += [present.eq(queue.r_rdy), head.eq(coming), final.eq(coming.vectors == 1)]
        with m.Elif(vectors.write):
            m.d.sync += [head.vectors.eq(head.vectors - 1), final.eq(head.vectors == 2)]
            if "row" in self._copied:
                m.d.sync += head.row.eq(head.row + step)
        return m

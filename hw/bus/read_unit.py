"""Host memory -> chip: the mover behind LOAD, LOAD_BIAS and LOAD_WEIGHTS."""

from amaranth import Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from ..lib.width_converter import WidthConverter
from .burst_splitter import MAX_BURST, BurstSplitter, burst_request

__all__ = ["ReadUnit"]


class ReadUnit(wiring.Component):
    """Executes transfers from host memory in order; asks for the next ones while data of earlier ones is on its way.

    Data comes as strobes (see :class:`hw.bus.axi_reader.AxiReader`) and leaves at once, as vectors: `write` with `row`,
    counted from the operation's first row, and `bias` as the operation has it.

    Parameters
    ----------
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.
    bus_width, vector_width : int
        Bits; a vector is a whole number of beats.
    longest : int
        Beats of the longest burst.
    """

    #: Operations whose data may be on its way.
    under_way = 8

    def __init__(self, *, transfer, bus_width, vector_width, longest=MAX_BURST):
        self.transfer = transfer
        self.bus_width = bus_width
        self.vector_width = vector_width
        self.longest = longest
        tag = transfer["tag"].shape
        address_width = transfer["address"].width
        self._address_width = address_width
        super().__init__({
            "i": In(stream.Signature(transfer)), "done": Out(1), "done_slot": Out(tag["slot"].shape),
            "request": Out(stream.Signature(burst_request(address_width))),
            "data_valid": In(1), "data_error": In(1), "data": In(bus_width),
            "write": Out(1), "row": Out(16), "bias": Out(1), "vector": Out(vector_width),
            "error": Out(1), "error_pc": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        ratio = self.vector_width // self.bus_width
        m.submodules.splitter = splitter = BurstSplitter(
            address_width=self._address_width, bus_bytes=self.bus_width // 8,
            beats_width=self.transfer["vectors"].width + exact_log2(ratio), longest=self.longest)
        m.submodules.converter = converter = WidthConverter(width=self.bus_width, ratio=ratio)
        expected = data.StructLayout({name: self.transfer[name].shape for name in ("tag", "vectors", "row", "bias")})
        m.submodules.expected = queue = fifo.SyncFIFO(width=expected.size, depth=self.under_way)
        connect(m, splitter.o, flipped(self.request))

        entry = Signal(expected)
        m.d.comb += [
            splitter.i.p.address.eq(self.i.p.address),
            splitter.i.p.beats.eq(self.i.p.vectors << exact_log2(ratio)),
            splitter.i.valid.eq(self.i.valid & queue.w_rdy),
            self.i.ready.eq(splitter.i.ready & queue.w_rdy),
            *(entry[name].eq(self.i.p[name]) for name, _ in expected),
            queue.w_data.eq(entry.as_value()),
            queue.w_en.eq(self.i.valid & self.i.ready),
        ]

        # The operation whose data comes: what is left of it, and whether that is one vector.
        coming, head = Signal(expected), Signal(expected)
        present, final = Signal(), Signal()
        m.d.comb += [
            coming.as_value().eq(queue.r_data),
            converter.i.eq(self.data),
            converter.i_valid.eq(self.data_valid),
            self.write.eq(converter.o_valid),
            self.vector.eq(converter.o),
            self.row.eq(head.row),
            self.bias.eq(head.bias),
            self.done.eq(self.write & final),
            self.done_slot.eq(head.tag.slot),
            self.error.eq(self.data_error),
            self.error_pc.eq(head.tag.pc),
        ]
        with m.If(self.done | ~present):
            m.d.comb += queue.r_en.eq(1)
            m.d.sync += [present.eq(queue.r_rdy), head.eq(coming), final.eq(coming.vectors == 1)]
        with m.Elif(self.write):
            m.d.sync += [head.row.eq(head.row + 1), head.vectors.eq(head.vectors - 1), final.eq(head.vectors == 2)]
        return m

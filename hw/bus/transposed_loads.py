"""Loads with and without transposition: the path from the read unit to the unified buffer, through or around the transposer."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..lib.delay_line import DelayLine
from ..spec.unit_ports import unit_port
from .read_unit import ReadUnit

__all__ = ["TransposedLoads"]


class TransposedLoads(wiring.Component):
    """The connection of the dispatcher, the read unit of the loads, a transposer, and the vector port.

    Vectors of transposing operations pass through the transposer, which has no stall. All other vectors leave in the cycle in
    which they arrive. Such an operation begins only after all transposing operations before it have ended. So there is at most
    one vector a cycle for the port. A transposing operation ends when its last vector leaves the transposer.

    Parameters
    ----------
    n : int
        Lanes, and vectors of a tile.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`, with `transpose`.
    latency : int
        Latency of the transposer in cycles, from the last vector of a tile in to the first vector out.

    Members
    -------
    port : unit port of transfer, in
        Port to the dispatcher.
    load : unit port of transfer, out
        Port to the read unit.
    i_write, i_row, i_bias, i_transpose, i_vector
        A vector from the read unit; see :class:`hw.bus.read_unit.ReadUnit`.
    tile_valid : 1, out
        The transposer takes `i_vector`.
    transposed_valid : 1, in
    transposed : 16 n, in
        A vector from the transposer.
    write, bias : 1, out
    row : 16, out
    vector : 16 n, out
        A vector for the unified buffer or, with `bias`, for the biases.
    """

    def __init__(self, *, n, transfer, latency):
        self.n, self.transfer, self.latency = n, transfer, latency
        vector = 16 * n
        super().__init__(
            {
                "port": In(unit_port(transfer)),
                "load": Out(unit_port(transfer)),
                "i_write": In(1),
                "i_row": In(16),
                "i_bias": In(1),
                "i_transpose": In(1),
                "i_vector": In(vector),
                "tile_valid": Out(1),
                "transposed_valid": In(1),
                "transposed": In(vector),
                "write": Out(1),
                "row": Out(16),
                "bias": Out(1),
                "vector": Out(vector),
            }
        )

    def elaborate(self, platform):
        m = Module()
        port, load, n = self.port, self.load, self.n

        # Transposing operations that have not ended: in the read unit, or with their last tiles in the transposer.
        most = ReadUnit.under_way + 1 + -(-(self.latency + n) // n)
        open_, begun, ended = Signal(range(most + 1)), Signal(), Signal()
        m.d.sync += open_.eq(open_ + begun - ended)
        allowed = Signal()
        m.d.comb += [
            allowed.eq(port.op.p.transpose | (open_ == 0)),
            load.op.payload.eq(port.op.payload),
            load.op.valid.eq(port.op.valid & allowed),
            port.op.ready.eq(load.op.ready & allowed),
            begun.eq(load.op.valid & load.op.ready & port.op.p.transpose),
        ]

        # The last vector of a tile leaves n - 1 cycles after the first.
        slot_width = len(load.done_slot)
        m.submodules.ends = ends = DelayLine(cycles=self.latency + n - 1, width=slot_width)
        m.d.comb += [
            ends.i_valid.eq(load.done & self.i_transpose),
            ends.i_data.eq(load.done_slot),
            ended.eq(ends.o_valid),
            port.done.eq(ended | (load.done & ~self.i_transpose)),
            port.done_slot.eq(Mux(ended, ends.o_data, load.done_slot)),
        ]

        # Tiles leave in the order of arrival, each to the rows that it arrived with.
        m.submodules.rows = rows = DelayLine(cycles=self.latency, width=16)
        number = Signal(range(n))
        last, count = Signal(), Signal(bits_for(n - 1))
        m.d.comb += [
            self.tile_valid.eq(self.i_write & self.i_transpose),
            last.eq(self.tile_valid & (number == n - 1)),
            rows.i_valid.eq(last),
            rows.i_data.eq(self.i_row - (n - 1)),
        ]
        with m.If(self.tile_valid):
            m.d.sync += number.eq(number + 1)
        first, present = Signal(16), Signal(16)
        m.d.comb += present.eq(Mux(rows.o_valid, rows.o_data, first))
        with m.If(self.transposed_valid):
            m.d.sync += [first.eq(present), count.eq(count + 1)]
        m.d.comb += [
            self.write.eq(self.transposed_valid | (self.i_write & ~self.i_transpose)),
            self.row.eq(Mux(self.transposed_valid, present + count, self.i_row)),
            self.bias.eq(self.i_bias & ~self.transposed_valid),
            self.vector.eq(Mux(self.transposed_valid, self.transposed, self.i_vector)),
        ]
        return m

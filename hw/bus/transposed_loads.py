"""Loads with and without transposition: the path from the read unit to the unified buffer, through the transposer or past it."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..array.transposer import Transposer
from ..lib.delay_line import DelayLine
from ..lib.hierarchy import instantiate
from ..spec.memory_ports import loads_port
from ..spec.unit_ports import unit_port
from .read_unit import ReadUnit

__all__ = ["TransposedLoads"]


class TransposedLoads(wiring.Component):
    """Connects the transposer of loads to the dispatcher, the read unit of the loads, and the vector port.

    Vectors of operations with `transpose` pass through the transposer, which cannot stall. All other vectors leave in the cycle
    in which they arrive. An operation without `transpose` begins only after all operations with `transpose` before it have ended,
    so at most one vector per cycle leaves. An operation with `transpose` ends when its last vector leaves the transposer.

    Parameters
    ----------
    n : int
        Lanes, and vectors of a tile.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`, with `transpose`.

    Members
    -------
    port : unit port of transfer, in
        Port to the dispatcher.
    load : unit port of transfer, out
        Port to the read unit.
    i : loads port, in
        Vectors from the read unit; see :func:`hw.spec.memory_ports.loads_port`.
    o : loads port, out
        Vectors for the unified buffer or, with `bias`, for the biases.
    """

    def __init__(self, *, n, transfer):
        self.n, self.transfer, self.latency = n, transfer, Transposer.latency
        vectors = loads_port(transfer, 16 * n)
        super().__init__({"port": In(unit_port(transfer)), "load": Out(unit_port(transfer)), "i": In(vectors), "o": Out(vectors)})

    def elaborate(self, platform):
        m = Module()
        port, load, i, o, n = self.port, self.load, self.i, self.o, self.n
        transposer = instantiate(m, platform, lambda: Transposer(n=n), name="transposer", module="tpu_load_transposer")

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
            ends.i_valid.eq(load.done & i.transpose),
            ends.i_data.eq(load.done_slot),
            ended.eq(ends.o_valid),
            port.done.eq(ended | (load.done & ~i.transpose)),
            port.done_slot.eq(Mux(ended, ends.o_data, load.done_slot)),
        ]

        # Tiles leave in the order of arrival, each to the rows that it arrived with.
        m.submodules.rows = rows = DelayLine(cycles=self.latency, width=len(i.row))
        number = Signal(range(n))
        last, count = Signal(), Signal(bits_for(n - 1))
        m.d.comb += [
            transposer.i_valid.eq(i.write & i.transpose),
            transposer.i.eq(i.vector),
            transposer.transpose.eq(1),
            last.eq(transposer.i_valid & (number == n - 1)),
            rows.i_valid.eq(last),
            rows.i_data.eq(i.row - (n - 1)),
        ]
        with m.If(transposer.i_valid):
            m.d.sync += number.eq(number + 1)
        first, present = Signal.like(i.row), Signal.like(i.row)
        m.d.comb += present.eq(Mux(rows.o_valid, rows.o_data, first))
        with m.If(transposer.o_valid):
            m.d.sync += [first.eq(present), count.eq(count + 1)]
        m.d.comb += [
            o.write.eq(transposer.o_valid | (i.write & ~i.transpose)),
            o.row.eq(Mux(transposer.o_valid, present + count, i.row)),
            o.bias.eq(i.bias & ~transposer.o_valid),
            o.transpose.eq(transposer.o_valid),
            o.vector.eq(Mux(transposer.o_valid, transposer.o, i.vector)),
            *([o.half.eq(i.half)] if "half" in self.transfer.members else []),
        ]
        return m

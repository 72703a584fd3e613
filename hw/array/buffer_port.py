"""The arbiter of the vector port of the unified buffer."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..spec.memory_ports import client_port, loads_port, memory_port

__all__ = ["BufferPort"]


class BufferPort(wiring.Component):
    """Arbitrates the vector port, combinationally. The priority is: loads, which cannot wait; results; the ring; stores.

    A load is registered first and written one cycle later: its path from the bus would otherwise continue through the grants into
    the other units. An instruction that waits for the load reads the buffer no sooner than two cycles after the load has ended.

    Parameters
    ----------
    n : int
        Lanes.
    depth : int
        Rows of the unified buffer.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`.
    ring : bool
        True to add a port for the ring unit.

    Members
    -------
    load : loads port, in
        See :func:`hw.spec.memory_ports.loads_port`. Vectors with `bias` are ignored.
    results, store : client port, in
        Ports of the activation unit and, without writes, of the store unit; see :func:`hw.spec.memory_ports.client_port`.
    ring : client port, in
        Port of the ring unit; a read has priority over a write.
    buffer : memory port, out
        To the unified buffer; see :func:`hw.spec.memory_ports.memory_port`.
    """

    def __init__(self, *, n, depth, transfer, ring=False):
        row = bits_for(depth - 1)
        self.has_ring = ring
        super().__init__(
            {
                "load": In(loads_port(transfer, 16 * n)),
                "results": In(client_port(row, n)),
                **({"ring": In(client_port(16, n))} if ring else {}),
                "store": In(client_port(row, n, writes=False)),
                "buffer": Out(memory_port(row, n)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        load, results, store, buffer = self.load, self.results, self.store, self.buffer
        m.d.comb += [
            store.operand.eq(buffer.operand),
            results.operand.eq(buffer.operand),
            *([self.ring.operand.eq(buffer.operand)] if self.has_ring else []),
        ]
        loading, asked = Signal(), results.write | results.read
        free = Signal(init=1)  # equals ~loading, with a low fan-out: for the grants, which are on the critical path
        row, vector = Signal.like(load.row, reset_less=True), Signal.like(load.vector, reset_less=True)
        coming = load.write & ~load.bias
        m.d.sync += [loading.eq(coming), free.eq(~coming), row.eq(load.row), vector.eq(load.vector)]
        if self.has_ring:
            results, asked = self._with_ring(m, results, self.ring, free)
        m.d.comb += [
            *([] if self.has_ring else [results.grant.eq(free)]),
            store.grant.eq(free & ~asked),
            buffer.write.eq(loading | results.write),
            buffer.read.eq(free & (results.read | (store.read & ~asked))),
            buffer.address.eq(Mux(loading, row, Mux(asked, results.row, store.row))),
            buffer.vector.eq(Mux(loading, vector, results.vector)),
        ]
        return m

    def _with_ring(self, m, results, ring, free):
        """Merges the activation unit and the ring unit into one client, in which results have priority. Returns the client's
        ports and its request."""
        asked, one = results.write | results.read, ring.signature.create(path=("one",))
        m.d.comb += [
            results.grant.eq(free),
            ring.grant.eq(free & ~asked),
            one.write.eq(results.write | (ring.write & ~(ring.read | asked))),
            one.read.eq(results.read | (ring.read & ~asked)),
            one.row.eq(Mux(asked, results.row, ring.row)),
            one.vector.eq(Mux(results.write, results.vector, ring.vector)),
        ]
        return one, asked | ring.write | ring.read

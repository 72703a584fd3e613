"""The arbiter of the vector port of the unified buffer."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..spec.memory_ports import client_port, loads_port, memory_port

__all__ = ["BufferPort"]


class BufferPort(wiring.Component):
    """Arbitrates the vector port. Grants are combinational. The priority is: loads, which cannot wait; results; the ring; stores.

    A load is registered first and written one cycle later: its path from the bus would otherwise continue through the grants into
    the other units. With a `latency` of 2 a register follows the selection, as the wires to the memories of all lanes are long.
    A load is then written two cycles later, and a result one cycle after its grant. No instruction waits longer for them: a
    MATMUL that waits for an instruction reads the buffer no sooner than three cycles after that instruction has ended.

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
    latency : int
        Cycles from the grant of a read to its data: 1, or 2 with the register.

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

    def __init__(self, *, n, depth, transfer, ring=False, latency=1):
        row = bits_for(depth - 1)
        self.has_ring = ring
        self.latency = latency
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
        m.d.comb += [*([] if self.has_ring else [results.grant.eq(free)]), store.grant.eq(free & ~asked)]
        chosen = {
            "write": loading | results.write,
            "read": free & (results.read | (store.read & ~asked)),
            "address": Mux(loading, row, Mux(asked, results.row, store.row)),
            "vector": Mux(loading, vector, results.vector),
        }
        for name, value in chosen.items():
            if self.latency > 1:
                register = Signal(len(value), name=f"chosen_{name}", reset_less=name in ("address", "vector"))
                m.d.sync += register.eq(value)
                value = register
            m.d.comb += getattr(buffer, name).eq(value)
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

"""The arbiter of the unified buffer's vector port."""

from amaranth import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature
from amaranth.utils import bits_for

__all__ = ["BufferPort"]


class BufferPort(wiring.Component):
    """Arbitrates the vector port, combinationally. Priority: loads, which cannot wait, results, the ring, stores.

    Parameters
    ----------
    n : int
        Lanes.
    depth : int
        Rows of the unified buffer.
    ring : bool
        Add a port for the ring unit.

    Members
    -------
    load.write : 1, in
        A vector from host memory.
    load.bias : 1, in
        The vector is half a bias row, not for the unified buffer.
    results.write, results.read : 1, in
        The activation unit requests a write or a read.
    results.grant : 1, out
        The request is granted in this cycle.
    ring.write, ring.read, ring.grant, ring.row, ring.vector
        The same for the ring unit; a read has priority over a write.
    store.read : 1, in
        The store unit requests a read.
    store.grant : 1, out
        The request is granted in this cycle.
    load.row, results.row, store.row : 16, in
    load.vector, results.vector : 16 n, in
    write, read : 1, out
    address : row of the unified buffer, out
    vector : 16 n, out
        To the unified buffer.
    """

    def __init__(self, *, n, depth, ring=False):
        width = 16 * n
        both = Signature({"write": Out(1), "read": Out(1), "row": Out(16), "vector": Out(width), "grant": In(1)})
        self.has_ring = ring
        super().__init__(
            {
                "load": In(Signature({"write": Out(1), "bias": Out(1), "row": Out(16), "vector": Out(width)})),
                "results": In(both),
                **({"ring": In(both)} if ring else {}),
                "store": In(Signature({"read": Out(1), "row": Out(16), "grant": In(1)})),
                "write": Out(1),
                "read": Out(1),
                "address": Out(bits_for(depth - 1)),
                "vector": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        load, results, store = self.load, self.results, self.store
        loading, asked = load.write & ~load.bias, results.write | results.read
        if self.has_ring:
            results, asked = self._with_ring(m, results, self.ring, ~(load.write & ~load.bias))
        m.d.comb += [
            *([] if self.has_ring else [results.grant.eq(~loading)]),
            store.grant.eq(~loading & ~asked),
            self.write.eq(loading | results.write),
            self.read.eq(~loading & (results.read | (store.read & ~asked))),
            self.address.eq(Mux(loading, load.row, Mux(asked, results.row, store.row))),
            self.vector.eq(Mux(loading, load.vector, results.vector)),
        ]
        return m

    def _with_ring(self, m, results, ring, free):
        """Merges results and ring into one client, results first. Returns its ports and its request."""
        asked, one = results.write | results.read, Signature(results.signature.members).create(path=("one",))
        m.d.comb += [
            results.grant.eq(free),
            ring.grant.eq(free & ~asked),
            one.write.eq(results.write | (ring.write & ~(ring.read | asked))),
            one.read.eq(results.read | (ring.read & ~asked)),
            one.row.eq(Mux(asked, results.row, ring.row)),
            one.vector.eq(Mux(results.write, results.vector, ring.vector)),
        ]
        return one, asked | ring.write | ring.read

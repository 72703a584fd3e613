"""Refusal of RING in a core whose position in the ring is invalid, or whose links may hold vectors of an aborted run."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.registers import MOST_CORES
from ..spec.run_ports import ring_check, ring_links, ring_position, run_state

__all__ = ["RingGuard"]


class RingGuard(wiring.Component):
    """Decides if RING may execute.

    Vectors of an aborted run may still be on the links. RING is refused until a flush discards them. A reset of the core alone
    aborts its run too, and the guard cannot tell it from a reset of all cores: after every reset, RING is refused. A core alone
    in its ring has no links, and needs no flush.

    Members
    -------
    position : ring position, in
        See :func:`hw.spec.run_ports.ring_position`.
    links : ring links, in
        See :func:`hw.spec.run_ports.ring_links`.
    run : run state, in
        See :func:`hw.spec.run_ports.run_state`.
    refused : 1, out
        RING needs a flush.
    check : ring check, out
        To the decoder; see :func:`hw.spec.run_ports.ring_check`. `ready` is one cycle late.
    """

    def __init__(self):
        super().__init__(
            {
                "position": In(ring_position()),
                "links": In(ring_links()),
                "run": In(run_state()),
                "refused": Out(1, init=1),
                "check": Out(ring_check()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        position, links, run = self.position, self.links, self.run
        abandoned = run.faulted | (run.reset & (run.active | links.held | links.offered))
        is_valid = (position.rank < position.size) & (position.size <= MOST_CORES)
        m.d.comb += self.check.size.eq(position.size)
        m.d.sync += [
            self.refused.eq((self.refused | abandoned) & ~position.flush),
            self.check.ready.eq(is_valid & ~position.flush & ~(self.refused & (position.size != 1))),
        ]
        return m

"""Why the array takes no row."""

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.registers import STALLS
from .dispatcher import UNITS

__all__ = ["StallReasons"]


class StallReasons(wiring.Component):
    """The reasons why no row enters the array in a cycle; combinational. The first one in the order of `STALLS` counts.

    There is always one. The inputs mean nothing in a cycle in which a row enters the array.

    Members
    -------
    waits_weights, waits_sums : 1, in
        The next pass waits for its tile, or for sums; see :class:`hw.matmul.row_issuer.RowIssuer`.
    shifting : 1, in
        A tile shifts into the array.
    waits : units, in
        The units that the next MATMUL waits for, one bit each, in the order of `UNITS`.
    idle : 1, in
        The matmul unit has no operation.
    matmul_queued : 1, in
        A MATMUL is dispatched, and not yet in the matmul unit.
    at_end : 1, in
        SYNC or HALT waits for what came before it.
    stall : reasons, out
        One bit each, in the order of `STALLS`.
    """

    def __init__(self):
        super().__init__(
            {
                "waits_weights": In(1),
                "waits_sums": In(1),
                "shifting": In(1),
                "waits": In(len(UNITS)),
                "idle": In(1),
                "matmul_queued": In(1),
                "at_end": In(1),
                "stall": Out(len(STALLS)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        passes = ~(self.waits_weights | self.waits_sums)
        units = dict(zip(UNITS, self.waits))
        reasons = {
            "load": units["load"] & passes,
            "activate": units["activate"] & passes,
            "store": units["store"] & passes,
            "weights": self.waits_weights & ~self.shifting,
            "shift": self.waits_weights & self.shifting,
            "accumulate": self.waits_sums,
            "drain": self.idle & ~self.matmul_queued & self.at_end,
        }
        reasons["fetch"] = ~Cat(reasons.values()).any()
        m.d.comb += self.stall.eq(Cat(reasons[name] for name in STALLS))
        return m

"""The reasons why the systolic array stalls."""

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.registers import stalls_of
from .dispatcher import units_of

__all__ = ["StallReasons"]


class StallReasons(wiring.Component):
    """Computes the reasons why no row enters the array in a cycle. Combinational.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    waits_weights, waits_sums : 1, in
        The next pass waits for its weight tile, or for sums; see :class:`hw.matmul.row_issuer.RowIssuer`.
    shifting : 1, in
        A weight tile shifts into the array.
    waits : units, in
        Units that the next MATMUL waits for, one bit each, in the order of :func:`hw.control.dispatcher.units_of`.
    idle : 1, in
        The matmul unit has no operation.
    matmul_queued : 1, in
        A MATMUL is dispatched, but the matmul unit has not taken it.
    at_end : 1, in
        SYNC or HALT waits for the preceding instructions.
    stall : reasons, out
        One bit each, in the order of :func:`hw.spec.registers.stalls_of`.
    """

    def __init__(self, *, config):
        self.units, self.reasons = units_of(config), stalls_of(config)
        super().__init__(
            {
                "waits_weights": In(1),
                "waits_sums": In(1),
                "shifting": In(1),
                "waits": In(len(self.units)),
                "idle": In(1),
                "matmul_queued": In(1),
                "at_end": In(1),
                "stall": Out(len(self.reasons)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        passes = ~(self.waits_weights | self.waits_sums)
        units = dict(zip(self.units, self.waits))
        reasons = {
            "load": units["load"] & passes,
            "activate": units["activate"] & passes,
            "store": units["store"] & passes,
            "weights": self.waits_weights & ~self.shifting,
            "shift": self.waits_weights & self.shifting,
            "accumulate": self.waits_sums,
            "drain": self.idle & ~self.matmul_queued & self.at_end,
        }
        if "ring" in units:
            reasons["ring"] = units["ring"] & passes
        reasons["fetch"] = ~Cat(reasons.values()).any()
        m.d.comb += self.stall.eq(Cat(reasons[name] for name in self.reasons))
        return m

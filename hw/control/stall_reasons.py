"""The reasons why the systolic array stalls."""

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.registers import stalls_of
from ..spec.unit_ports import dispatch_port, issue_port, stall_port
from .dispatcher import units_of

__all__ = ["StallReasons"]


class StallReasons(wiring.Component):
    """Computes the reasons why no row enters the array in a cycle. Combinational.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    issue : issue port, in
        From the matrix multiply unit; see :func:`hw.spec.unit_ports.issue_port`.
    shifting : 1, in
        A weight tile shifts into the array.
    dispatch : dispatch port, in
        From the dispatcher; see :func:`hw.spec.unit_ports.dispatch_port`.
    o : stall port, out
        To run control; see :func:`hw.spec.unit_ports.stall_port`.
    """

    def __init__(self, *, config):
        self.units, self.reasons = units_of(config), stalls_of(config)
        super().__init__(
            {
                "issue": In(issue_port()),
                "shifting": In(1),
                "dispatch": In(dispatch_port(len(self.units))),
                "o": Out(stall_port(len(self.reasons))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        issue, dispatch = self.issue, self.dispatch
        passes = ~(issue.waits_weights | issue.waits_sums)
        units = dict(zip(self.units, dispatch.waits))
        reasons = {
            "load": units["load"] & passes,
            "activate": units["activate"] & passes,
            "store": units["store"] & passes,
            "weights": issue.waits_weights & ~self.shifting,
            "shift": issue.waits_weights & self.shifting,
            "accumulate": issue.waits_sums,
            "drain": issue.idle & ~dispatch.matmul_queued & dispatch.at_end,
        }
        if "ring" in units:
            reasons["ring"] = units["ring"] & passes
        reasons["fetch"] = ~Cat(reasons.values()).any()
        m.d.comb += [self.o.busy.eq(issue.issued), self.o.stall.eq(Cat(reasons[name] for name in self.reasons))]
        return m

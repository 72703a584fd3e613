"""The register for the fault that ends a run."""

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.unit_ports import fault_port

__all__ = ["FaultLatch"]


class FaultLatch(wiring.Component):
    """Forwards a fault one cycle later. If several sources report in one cycle, the first source has priority.

    Parameters
    ----------
    sources : int
        Number of sources.

    Members
    -------
    i : array of fault ports, in
        See :func:`hw.spec.unit_ports.fault_port`.
    o : fault port, out
    """

    def __init__(self, *, sources):
        super().__init__({"i": In(fault_port()).array(sources), "o": Out(fault_port())})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.o.valid.eq(Cat(source.valid for source in self.i).any())
        for index, source in enumerate(self.i):
            with m.If(source.valid) if index == 0 else m.Elif(source.valid):
                m.d.sync += [self.o.cause.eq(source.cause), self.o.pc.eq(source.pc)]
        return m

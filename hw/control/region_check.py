"""The check that a region of host memory is inside the address space of the bus: for MODEL at the fetch unit, for the region of a
transfer in the decoder."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.run_ports import region_port
from .control_registers import region_registers

__all__ = ["RegionCheck", "exceeds"]


def exceeds(base, size):
    """Returns a value that is 1 if `size` bytes from bus address `base` on exceed the address space of the bus."""
    width = len(base)
    # A region may end at the top of the address space: the sum then carries and is 0. The test for 0 needs no carry chain.
    return (base + size)[width] & ((base ^ size) != ((base | size) << 1)[:width])


class RegionCheck(wiring.Component):
    """Outputs the base and the size of a region. The size is 0 if the region exceeds the address space of the bus.

    `o.size` has a latency of two cycles from the registers. `o.base` is combinational.

    Parameters
    ----------
    address_width : int
        Bits of a bus address, 32 to 64.

    Members
    -------
    region : region registers, in
        See :func:`hw.control.control_registers.region_registers`.
    o : region port, out
        See :func:`hw.spec.run_ports.region_port`.
    """

    def __init__(self, *, address_width):
        self.address_width = address_width
        super().__init__({"region": In(region_registers()), "o": Out(region_port(address_width))})

    def elaborate(self, platform):
        m = Module()
        region, whole = self.region, Cat(self.region.base_low, self.region.base_high)
        base, size = whole[: self.address_width], region.size
        outside = Signal()
        m.d.sync += [outside.eq(whole[self.address_width :].any() | exceeds(base, size)), self.o.size.eq(Mux(outside, 0, size))]
        m.d.comb += self.o.base.eq(base)
        return m

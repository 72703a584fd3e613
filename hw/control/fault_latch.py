"""The register for the fault that ends a run."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..spec.unit_ports import fault_port, placed_port, unit_fault_port

__all__ = ["FaultLatch"]


class FaultLatch(wiring.Component):
    """Forwards a fault one cycle later. If several sources report in one cycle, the first source has priority; the decoder is the
    last.

    Units report the slot of the operation at fault. A memory here has the offset of the instruction in each slot. An instruction
    gets a slot no sooner than two cycles after the slot's last operation has reported its fault or its end.

    Parameters
    ----------
    layouts : list of layout
        Layouts of the operations of the units that report faults.
    slots : int
        Instructions in flight.

    Members
    -------
    units : fault_<index>, unit fault ports, in
        One for each of `layouts`; see :func:`hw.spec.unit_ports.unit_fault_port`.
    decoder : fault port, in
        See :func:`hw.spec.unit_ports.fault_port`. `pc` stays until the run ends.
    placed : placed port, in
        From the dispatcher; see :func:`hw.spec.unit_ports.placed_port`.
    o : fault port, out
    """

    def __init__(self, *, layouts, slots):
        self.slots = slots
        units = {f"unit_{index}": In(unit_fault_port(layout)) for index, layout in enumerate(layouts)}
        self._names = list(units)
        super().__init__({**units, "decoder": In(fault_port()), "placed": In(placed_port(slots)), "o": Out(fault_port())})

    @property
    def units(self):
        """Returns the ports of the units, in the order of `layouts`."""
        return [getattr(self, name) for name in self._names]

    def elaborate(self, platform):
        m = Module()
        m.submodules.offsets = offsets = Memory(shape=32, depth=self.slots, init=[])
        write, read = offsets.write_port(), offsets.read_port(domain="comb")
        slot, in_unit = Signal(range(self.slots)), Signal()
        m.d.comb += [
            write.en.eq(self.placed.valid),
            write.addr.eq(self.placed.slot),
            write.data.eq(self.placed.pc),
            read.addr.eq(slot),
            self.o.pc.eq(Mux(in_unit, read.data, self.decoder.pc)),
        ]
        reported = Cat(unit.valid for unit in self.units)
        m.d.sync += [
            self.o.valid.eq(reported.any() | self.decoder.valid),
            in_unit.eq(reported.any()),
            self.o.cause.eq(self.decoder.cause),
        ]
        for unit in reversed(self.units):
            with m.If(unit.valid):
                m.d.sync += [self.o.cause.eq(unit.cause), slot.eq(unit.slot)]
        return m

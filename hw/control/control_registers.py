"""The AXI4-Lite subordinate with the registers of :mod:`hw.spec.registers`."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from ..bus.axi import OKAY, axi4_lite_signature
from ..spec.isa import Region
from ..spec.registers import ADDRESS_WIDTH, registers_of, stalls_of

__all__ = ["ControlRegisters", "region_registers"]


def region_registers():
    """Returns the signature of a region's registers, 32 bits each, as seen from the core."""
    return Signature({"base_low": Out(32), "base_high": Out(32), "size": Out(32)})


class ControlRegisters(wiring.Component):
    """AXI4-Lite registers with one outstanding read and one outstanding write. The response is always OKAY.

    Unmapped addresses read as 0. A write is accepted one cycle after both its address and its data are valid. Read data follow
    two cycles after the address.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    bus : AXI4-Lite, in
    <name> : 32, in
        For each `ro` register, and for `interrupt`: the value that a read returns.
    <name> : 32, out
        For each other `rw` register: its value.
    regions : array of region registers, out
        See :func:`region_registers`; in the order of `Region`.
    stalls : array of 32, in
        The counters, in the order of :func:`hw.spec.registers.stalls_of`.
    <name>_written : 1, out
        For each `w1` register, and for `interrupt`: 1 in the cycle in which `written_data` is written to it.
    written_data : 32, out
    """

    #: `rw` registers whose state is stored in another unit.
    _elsewhere = ("interrupt",)

    def __init__(self, *, config):
        self.registers = registers_of(config)
        members = {
            "bus": In(axi4_lite_signature(address_width=ADDRESS_WIDTH)),
            "regions": Out(region_registers()).array(len(Region)),
            "stalls": In(32).array(len(stalls_of(config))),
            "written_data": Out(32),
        }
        for register in self.registers:
            if register.group:
                continue
            if self._is_stored(register):
                members[register.name] = Out(32, init=register.reset)
            else:
                if register.access != "w1":
                    members[register.name] = In(32)
                if register.access != "ro":
                    members[f"{register.name}_written"] = Out(1)
        super().__init__(members)

    def _is_stored(self, register):
        return register.access == "rw" and register.name not in self._elsewhere

    def _value(self, register):
        """Returns the member, or the slice of a member, that holds the value of a register."""
        name, *steps = register.group or (register.name,)
        value = getattr(self, name)
        for step in steps:
            value = getattr(value, step) if isinstance(step, str) else value[step]
        return value

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        m.d.comb += [bus.bresp.eq(OKAY), bus.rresp.eq(OKAY)]

        # AXI forbids combinational paths from inputs to outputs: each ready is a register, or depends on registers alone.
        write = Signal()
        m.d.sync += write.eq(bus.awvalid & bus.wvalid & ~write & ~bus.bvalid)
        m.d.comb += [bus.awready.eq(write), bus.wready.eq(write)]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(write):
            m.d.sync += bus.bvalid.eq(1)

        read = Signal()
        m.d.comb += bus.arready.eq(~read & ~bus.rvalid)
        m.d.sync += read.eq(bus.arvalid & bus.arready)
        with m.If(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        # One cycle decodes the address. The next cycle reads the register.
        readable = [register for register in self.registers if register.access != "w1"]
        selected = Signal(len(readable))
        m.d.sync += selected.eq(Cat(bus.araddr[2:] == register.offset >> 2 for register in readable))
        with m.If(read):
            m.d.sync += [
                bus.rvalid.eq(1),
                bus.rdata.eq(reduce(or_, (Mux(selected[i], self._value(register), 0) for i, register in enumerate(readable)))),
            ]

        m.d.sync += self.written_data.eq(bus.wdata)
        for register in self.registers:
            chosen = write & (bus.awaddr[2:] == register.offset >> 2)
            if self._is_stored(register):
                held = self._value(register)
                for byte in range(4):
                    with m.If(chosen & bus.wstrb[byte]):
                        m.d.sync += held.word_select(byte, 8).eq(bus.wdata.word_select(byte, 8))
            elif register.access != "ro":
                m.d.sync += getattr(self, f"{register.name}_written").eq(chosen & bus.wstrb[0])
        return m

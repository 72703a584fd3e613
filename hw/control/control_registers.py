"""The AXI4-Lite slave: the register map of :mod:`hw.spec.registers` in hardware."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..bus.axi import OKAY, axi4_lite_signature
from ..spec.registers import ADDRESS_WIDTH, REGISTERS

__all__ = ["ControlRegisters"]


class ControlRegisters(wiring.Component):
    """One access at a time for each direction; every access is answered OKAY, and what is not mapped reads as 0.

    A write is taken one cycle after both its address and its data are there; a read answers two cycles after its address.

    Members
    -------
    bus : AXI4-Lite.
    <name> : an input for each `ro` register; an output that holds each `rw` register (but `interrupt`, an input).
    <name>_written, written_data : strobes of the `w1` registers and of `interrupt`, with what was written.
    """

    #: `rw` registers whose state lives elsewhere.
    _elsewhere = ("interrupt",)

    def __init__(self):
        members = {"bus": In(axi4_lite_signature(address_width=ADDRESS_WIDTH)), "written_data": Out(32)}
        for register in REGISTERS:
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

    def elaborate(self, platform):
        m = Module()
        bus = self.bus
        m.d.comb += [bus.bresp.eq(OKAY), bus.rresp.eq(OKAY)]

        # AXI wants no path from an input to an output: every ready is a register, or depends on registers alone.
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
        # The address is decoded in one cycle, the register taken in the next.
        readable = [register for register in REGISTERS if register.access != "w1"]
        selected = Signal(len(readable))
        m.d.sync += selected.eq(Cat(bus.araddr[2:] == register.offset >> 2 for register in readable))
        with m.If(read):
            m.d.sync += [
                bus.rvalid.eq(1),
                bus.rdata.eq(reduce(or_, (Mux(selected[i], getattr(self, register.name), 0) for i, register in enumerate(readable)))),
            ]

        m.d.sync += self.written_data.eq(bus.wdata)
        for register in REGISTERS:
            chosen = write & (bus.awaddr[2:] == register.offset >> 2)
            if self._is_stored(register):
                held = getattr(self, register.name)
                for byte in range(4):
                    with m.If(chosen & bus.wstrb[byte]):
                        m.d.sync += held.word_select(byte, 8).eq(bus.wdata.word_select(byte, 8))
            elif register.access != "ro":
                m.d.sync += getattr(self, f"{register.name}_written").eq(chosen & bus.wstrb[0])
        return m

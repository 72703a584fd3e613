"""The AXI4-Lite subordinate with the registers of :mod:`hw.spec.registers`."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from ..bus.axi import OKAY, axi4_lite_signature
from ..spec.isa import Region
from ..spec.registers import ADDRESS_WIDTH, REGISTER, described, registers_of
from ..spec.run_ports import ring_links, ring_position, run_registers

__all__ = ["ControlRegisters", "region_registers"]


def region_registers():
    """Returns the signature of a region's registers, 32 bits each, as seen from the core."""
    return Signature({"base_low": Out(32), "base_high": Out(32), "size": Out(32)})


class ControlRegisters(wiring.Component):
    """AXI4-Lite registers with one outstanding read and one outstanding write. The response is always OKAY.

    Unmapped addresses read as 0, and writes to them have no effect. The lowest two bits of an address are ignored. A write is
    accepted one cycle after both its address and its data are valid. Read data follow two cycles after the address.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    bus : AXI4-Lite, in
    run : run registers, out
        Commands, status and counters; see :func:`hw.spec.run_ports.run_registers`.
    pc : 32, out
    regions : array of region registers, out
        See :func:`region_registers`; in the order of `Region`.
    ring_position : ring position, out
    ring_links : ring links, in
    ring_refused : 1, in
        Only in a core with a ring; see :mod:`hw.spec.run_ports`.
    """

    def __init__(self, *, config):
        self.config = config
        ring = {"ring_position": Out(ring_position()), "ring_links": In(ring_links()), "ring_refused": In(1)}
        super().__init__(
            {
                "bus": In(axi4_lite_signature(address_width=ADDRESS_WIDTH)),
                "run": Out(run_registers(config)),
                "pc": Out(32),
                "regions": Out(region_registers()).array(len(Region)),
                **(ring if config.ring else {}),
            }
        )

    def _inputs(self):
        run = self.run
        counters = ("cycles", "read_beats", "write_beats", *(("ring_sent", "ring_received") if self.config.ring else ()))
        values = {
            "status": REGISTER["status"].pack(running=run.active, done=run.done, fault=run.faulted, quiet=run.quiet),
            "interrupt": REGISTER["interrupt"].pack(enable=run.enabled, pending=run.pending),
            "fault_cause": run.fault_cause.as_value(),
            "fault_pc": run.fault_pc,
            **{name: getattr(run, name) for name in counters},
        }
        if self.config.ring:
            links = self.ring_links
            state = REGISTER["ring_state"].pack(held=links.held, offered=links.offered, refused=self.ring_refused)
            values["ring_state"] = state
        return values

    def _connect_stored(self, m, stored):
        m.d.comb += [self.run.timeout.eq(stored["timeout"]), self.pc.eq(stored["pc"])]
        for region, registers in zip(Region, self.regions):
            prefix = region.name.lower()
            m.d.comb += [getattr(registers, part).eq(stored[f"{prefix}_{part}"]) for part in registers.signature.members]
        if self.config.ring:
            position, fields = self.ring_position, REGISTER["ring"].unpack(stored["ring"])
            m.d.comb += [position.rank.eq(fields["rank"]), position.size.eq(fields["size"]), position.flush.eq(fields["flush"])]

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
        registers = registers_of(self.config)
        stored = {
            register.name: Signal(32, name=register.name, init=register.reset)
            for register in registers
            if register.access == "rw" and register.name != "interrupt"
        }
        self._connect_stored(m, stored)
        values = {**described(self.config), **self._inputs(), **stored}
        counters = [register for register in registers if register.name == "busy" or register.name.startswith("stall_")]
        readable = [register for register in registers if register.access != "w1" and register not in counters]
        selected, counts = Signal(len(readable)), Signal()
        m.d.comb += self.run.counter.eq(bus.araddr[2:])
        m.d.sync += [
            selected.eq(Cat(bus.araddr[2:] == register.offset >> 2 for register in readable)),
            counts.eq(Cat(bus.araddr[2:] == register.offset >> 2 for register in counters).any()),
        ]
        chosen_values = [Mux(selected[i], values[register.name], 0) for i, register in enumerate(readable)]
        chosen_values.append(Mux(counts, self.run.count, 0))
        with m.If(read):
            m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(reduce(or_, chosen_values))]

        def chosen(name):
            return write & (bus.awaddr[2:] == REGISTER[name].offset >> 2)

        for name, held in stored.items():
            for byte in range(4):
                with m.If(chosen(name) & bus.wstrb[byte]):
                    m.d.sync += held.word_select(byte, 8).eq(bus.wdata.word_select(byte, 8))

        # Commands, one cycle later.
        written_data, control_written, interrupt_written = Signal(2), Signal(), Signal()
        m.d.sync += [
            written_data.eq(bus.wdata),
            control_written.eq(chosen("control") & bus.wstrb[0]),
            interrupt_written.eq(chosen("interrupt") & bus.wstrb[0]),
        ]
        m.d.comb += [
            self.run.start.eq(control_written & written_data[0]),
            self.run.reset.eq(control_written & written_data[1]),
            self.run.acknowledge.eq(interrupt_written & written_data[1]),
            self.run.enable_written.eq(interrupt_written),
            self.run.enable.eq(written_data[0]),
        ]
        return m

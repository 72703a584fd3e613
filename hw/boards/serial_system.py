"""A core with its memory and a serial bridge to both: a system that needs only a clock and a serial line, on any board."""

from dataclasses import replace

from amaranth import ClockSignal, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from ..lib.hierarchy import instantiate
from ..spec.serial_protocol import REGISTERS_BASE
from ..tpu import Tpu
from .board_memory import BoardMemory
from .sdram_chip import SdramChip
from .sdram_commands import sdram_pins
from .sdram_memory import SdramMemory
from .serial_bridge import SerialBridge

__all__ = ["SerialSystem"]


class SerialSystem(wiring.Component):
    """The core, its host memory from address 0, and a serial bridge to the memory and to the core's registers.

    Parameters
    ----------
    config : hw.config.Config
    memory : int or SdramChip
        Bytes of block RAM, a power of two; or a chip of SDRAM.
    clock : int
        Frequency in Hz.
    step : int
        Result of :func:`hw.boards.uart.bit_step`.
    silence : int
        Cycles without a byte after which the bridge discards an incomplete frame.

    Members
    -------
    rx : 1, in
    tx : 1, out
        The serial line.
    busy, failed : 1, out
        Status of the bridge; see :class:`hw.boards.serial_bridge.SerialBridge`.
    irq : 1, out
        Interrupt of the core.
    sdram : sdram_pins, out
        Only with a chip of SDRAM.
    """

    def __init__(self, config, *, memory, clock, step, silence):
        self.config = config
        self.memory = memory
        self.clock = clock
        self.step = step
        self.silence = silence
        self._chip = memory if isinstance(memory, SdramChip) else None
        pins = {"sdram": Out(wiring.Signature(sdram_pins()))} if self._chip else {}
        super().__init__({"rx": In(1), "tx": Out(1), "busy": Out(1), "failed": Out(1), "irq": Out(1), **pins})

    def elaborate(self, platform):
        m = Module()
        config = replace(self.config, axi_id_width=1)  # as the memories
        core = instantiate(m, platform, lambda: Tpu(config), name="core", module="tpu", domain=None)
        sizes = {"address_width": config.address_width, "data_width": config.bus_width}
        if self._chip:
            memory = SdramMemory(chip=self._chip, mhz=self.clock / 1e6, **sizes)
            connect(m, memory.pins, flipped(self.sdram))
        else:
            memory = BoardMemory(size=self.memory, always_ready=True, **sizes)
        m.submodules.memory = memory
        size = self._chip.size if self._chip else self.memory
        m.submodules.bridge = bridge = SerialBridge(
            step=self.step, silence=self.silence, identity={"memory": size, "clock": self.clock}
        )
        connect(m, core.m_axi_read, memory.read)
        connect(m, core.m_axi_write, memory.write)
        running = Signal()  # a register, since the reset has many readers
        m.d.sync += running.eq(1)
        m.d.comb += [
            core.aclk.eq(ClockSignal()),
            core.aresetn.eq(running),
            bridge.rx.eq(self.rx),
            self.tx.eq(bridge.tx),
            self.busy.eq(bridge.busy),
            self.failed.eq(bridge.failed),
            self.irq.eq(core.irq),
        ]

        # The bridge has one access in flight, so a response from either target belongs to it.
        bus, top = bridge.bus, exact_log2(REGISTERS_BASE)
        m.d.comb += [
            bus.awready.eq(Mux(bus.awaddr[top], core.s_axil.awready, memory.lite.awready)),
            bus.wready.eq(Mux(bus.awaddr[top], core.s_axil.wready, memory.lite.wready)),
            bus.arready.eq(Mux(bus.araddr[top], core.s_axil.arready, memory.lite.arready)),
        ]
        for target, chosen in ((core.s_axil, bus.awaddr[top]), (memory.lite, ~bus.awaddr[top])):
            m.d.comb += [
                target.awaddr.eq(bus.awaddr[:top]),
                target.awvalid.eq(bus.awvalid & chosen),
                target.wdata.eq(bus.wdata),
                target.wstrb.eq(bus.wstrb),
                target.wvalid.eq(bus.wvalid & chosen),
                target.bready.eq(bus.bready),
                target.araddr.eq(bus.araddr[:top]),
                target.arvalid.eq(bus.arvalid & chosen),
                target.rready.eq(bus.rready),
            ]
        m.d.comb += [
            bus.bvalid.eq(core.s_axil.bvalid | memory.lite.bvalid),
            bus.bresp.eq(Mux(bus.awaddr[top], core.s_axil.bresp, memory.lite.bresp)),
            bus.rvalid.eq(core.s_axil.rvalid | memory.lite.rvalid),
            bus.rresp.eq(Mux(bus.araddr[top], core.s_axil.rresp, memory.lite.rresp)),
            bus.rdata.eq(Mux(bus.araddr[top], core.s_axil.rdata, memory.lite.rdata)),
        ]
        return m

"""The core in a LiteX SoC: :func:`add_tpu`. Importing this file has no effects."""

from litex.soc.integration.soc import SoCRegion
from litex.soc.interconnect.axi import AXIInterface, AXILiteInterface
from migen import ClockSignal, Instance, Module, ResetSignal, Signal

__all__ = ["TpuCore", "add_tpu", "signals"]

#: Beats of reads that the port to LiteDRAM may have outstanding.
_READ_BEATS = 64


def signals(bus):
    """Yields `(name, signal, driven)` for the signals of all channels of a bus. Names are AXI's; `driven` is True if the manager
    drives the signal."""
    for channel in ("aw", "w", "b", "ar", "r"):
        endpoint = getattr(bus, channel)
        forward = channel in ("aw", "w", "ar")
        names = [name for name, _ in endpoint.description.payload_layout + endpoint.description.param_layout]
        lite = isinstance(bus, AXILiteInterface)
        names += ["last"] if channel in ("w", "r") and not lite else []
        for name in names:
            if name in ("dest", "user", "region") or (channel, name) == ("w", "id") or lite and name == "prot":
                continue  # AXI4 has none, or the core needs none
            yield channel + name, getattr(endpoint, name), forward
        yield channel + "valid", endpoint.valid, forward
        yield channel + "ready", endpoint.ready, not forward


class TpuCore(Module):
    """The module `tpu` of `tpu generate`, in the clock domain `sys`.

    Members
    -------
    registers : AXILiteInterface
        The core's registers; 512 bytes.
    memory : AXIInterface
        The core's manager.
    ev : Module
        `ev.irq` is the interrupt, by the name that `soc.irq.add` expects.
    """

    def __init__(self, config):
        self.registers = AXILiteInterface(data_width=32, address_width=32)
        widths = {"data_width": config.bus_width, "address_width": config.address_width, "id_width": config.axi_id_width}
        self.memory = AXIInterface(**widths)
        self.ev = Module()
        self.ev.irq = Signal()
        ports = {"i_aclk": ClockSignal(), "i_aresetn": ~ResetSignal(), "o_irq": self.ev.irq}
        for name, signal, forward in signals(self.registers):
            ports[f"{'i' if forward else 'o'}_s_axil_{name}"] = signal[:9] if name.endswith("addr") else signal
        for name, signal, forward in signals(self.memory):
            ports[f"{'o' if forward else 'i'}_m_axi_{name}"] = signal
        self.specials += Instance("tpu", **ports)


def add_tpu(soc, config, base, *, name="tpu", sdram=None):
    """Adds a core to a LiteX SoC. Its Verilog, from `tpu generate`, must be a source of the platform.

    Parameters
    ----------
    soc : litex.soc.integration.soc.SoC
    config : Config
        The core's configuration.
    base : int
        Address of the registers on the SoC's bus, of any standard.
    name : str
        Name of the module in the SoC, of its region and of its interrupt.
    sdram : LiteDRAMCore
        The DRAM to which the core gets a port of its own, such as `soc.sdram` after `soc.add_sdram`. The core then accesses the
        region `main_ram` only. Default: the core is a manager on the SoC's bus, which serves any memory.

    Raises
    ------
    ValueError
        If LiteDRAM's controller is wider than the core's bus.

    Returns
    -------
    TpuCore
        Also a submodule of the SoC. If the SoC has a CPU with interrupts, `ev.irq` is one of them.
    """
    core = TpuCore(config)
    soc.add_module(name=name, module=core)
    soc.bus.add_slave(name, core.registers, SoCRegion(origin=base, size=512, cached=False))
    if sdram:
        if (width := sdram.crossbar.controller.data_width) > config.bus_width:
            raise ValueError(
                f"LiteDRAM's controller has {width} bits, the core's bus {config.bus_width}: LiteDRAM's converter to a wider "
                "port stops during the core's bursts; give the core a bus of this width, or call add_tpu without sdram"
            )
        from litedram.frontend.axi import LiteDRAMAXI2Native

        port = sdram.crossbar.get_port(data_width=config.bus_width)
        bridge = LiteDRAMAXI2Native(
            core.memory, port, r_buffer_depth=_READ_BEATS, base_address=soc.bus.regions["main_ram"].origin
        )
        soc.add_module(name=f"{name}_dram", module=bridge)
    else:
        soc.bus.add_master(name, core.memory)
    if soc.irq.enabled:
        soc.irq.add(name, use_loc_if_exists=True)
    return core

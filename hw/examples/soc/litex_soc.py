"""FuseSoC generator `litex_soc`: the SoC of `soc.sv` made by LiteX, same module, same ports, same address map.

LiteX makes the interconnect, with its own registers at address 0. `add_tpu` of `litex_tpu.py` gives it the core's registers as a
subordinate, and the core's AXI4 port as a manager. Here the host is outside and the memory on pins, so that `bench.sv` fits.
"""

import sys
import types
from pathlib import Path

if __name__ == "__main__":  # not when `litex_dram.py` imports this file
    sys.modules["amaranth_tpu"] = package = types.ModuleType("amaranth_tpu")
    package.__path__ = [str(Path(__file__).resolve().parents[3])]  # this checkout, installed or not
    del sys.path[0]  # this folder must not shadow modules of the standard library

try:
    from litex.build.generic_platform import GenericPlatform, Pins, Subsignal
    from litex.soc.integration.soc import SoCRegion
    from litex.soc.integration.soc_core import SoCMini
    from litex.soc.interconnect.axi import AXIInterface, AXILiteInterface
    from migen import ClockDomain, Module

    from amaranth_tpu.hw.config import Config, ConfigError
    from amaranth_tpu.hw.examples.soc.litex_tpu import add_tpu, signals

    if __name__ == "__main__":
        from fusesoc.capi2.generator import Generator
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(
        f"error: {sys.executable} has no package {error.name}; put the environment of amaranth-tpu first on PATH, with "
        "litex installed: pip install litex"
    )

CORE_BASE, MEMORY_BASE, MEMORY_BYTES = 0x3000_0000, 0x4000_0000, 1 << 20


def pins(name, bus):
    return name, 0, *(Subsignal(signal, Pins(len(value))) for signal, value, _ in signals(bus))


def connect(bus, pads, manager_inside):
    """Returns the statements that connect a bus to pins. `manager_inside` is True if the manager is in the SoC, and False if it
    is outside."""
    return [
        getattr(pads, name).eq(signal) if forward == manager_inside else signal.eq(getattr(pads, name))
        for name, signal, forward in signals(bus)
    ]


class Clocks(Module):
    def __init__(self, platform):
        self.clock_domains.cd_sys = ClockDomain()
        self.comb += [self.cd_sys.clk.eq(platform.request("clk")), self.cd_sys.rst.eq(~platform.request("rst_n"))]


class Soc(SoCMini):
    def __init__(self, config):
        host = AXILiteInterface(data_width=32, address_width=32)
        memory = AXIInterface(data_width=config.bus_width, address_width=32, id_width=2)
        platform = GenericPlatform(
            "",
            [("clk", 0, Pins(1)), ("rst_n", 0, Pins(1)), ("irq", 0, Pins(1)), pins("s_axil", host), pins("m_axi", memory)],
            name="soc",
        )
        super().__init__(
            platform,
            clk_freq=100e6,
            bus_standard="axi",
            bus_data_width=config.bus_width,
            with_timer=False,
            with_uart=False,
            ident="",
            ident_version=False,
        )
        self.submodules.crg = Clocks(platform)
        self.comb += platform.request("irq").eq(add_tpu(self, config, CORE_BASE).ev.irq)
        self.bus.add_master("host", host)
        self.bus.add_slave("memory", memory, SoCRegion(origin=MEMORY_BASE, size=MEMORY_BYTES, cached=False))
        self.comb += connect(host, platform.request("s_axil"), manager_inside=False)
        self.comb += connect(memory, platform.request("m_axi"), manager_inside=True)


def main():
    generator = Generator()
    try:
        config = Config(**generator.config["core"])
    except KeyError as error:
        sys.exit(f"error: generator litex_soc needs the parameter {error}")
    except (ConfigError, TypeError) as error:
        sys.exit(f"error: {error}")
    soc = Soc(config)
    soc.finalize()
    # One always block for each signal: blocks with several signals trigger each other endlessly in event-driven simulators.
    text = str(soc.platform.get_verilog(soc, name="soc", regular_comb=False))
    # The bench sets the bus width of each SoC by a parameter.
    head = f"module soc #(parameter integer BUS_WIDTH = {config.bus_width}) ("
    Path("soc.v").write_text(text.replace("module soc (", head, 1))
    generator.add_files(["soc.v"], file_type="systemVerilogSource")
    generator.write()


if __name__ == "__main__":
    main()

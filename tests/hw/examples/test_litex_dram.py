"""Tests of a core in a LiteX SoC with LiteDRAM and its model of the memory: bits, cycles and the interrupt."""

import re

import pytest

from amaranth_tpu.hw.config import Config

pytest.importorskip("litedram", reason="litedram is in the extra `test`")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of LiteX and Python's compiler
@pytest.mark.search  # cycles are predicted for the fastest order
@pytest.mark.parametrize("memory", ["ddr3", "sdram"])
def test_port_of_litedram(memory, tmp_path, seed):
    """With a port of LiteDRAM, a network takes at most 1.2 times the cycles that are predicted for this memory."""
    from amaranth_tpu.hw.examples.soc.litex_dram import simulate

    predicted, cycles, differing = simulate("c", Config(n=4), memory, "dram", tmp_path, seed)
    assert differing == 0
    assert predicted / 1.2 < cycles < 1.2 * predicted, (cycles, predicted)


@pytest.mark.filterwarnings("ignore")  # of LiteX and Python's compiler
def test_interrupt_and_regions():
    """The interrupt of the core is one of a CPU's, and its registers are a region that the CPU does not cache."""
    from litex.build.generic_platform import GenericPlatform, Pins
    from litex.soc.integration.soc_core import SoCCore

    from amaranth_tpu.hw.examples.soc.litex_soc import Clocks
    from amaranth_tpu.hw.examples.soc.litex_tpu import add_tpu

    platform = GenericPlatform("", [("clk", 0, Pins(1)), ("rst_n", 0, Pins(1))], name="soc")
    soc = SoCCore(platform, clk_freq=100e6, cpu_type="vexriscv", integrated_rom_size=4096, uart_name="stub")
    soc.submodules.crg = Clocks(platform)
    add_tpu(soc, Config(n=2), 0xF010_0000)
    region, number = soc.bus.regions["tpu"], soc.irq.locs["tpu"]
    assert (region.origin, region.size, region.cached) == (0xF010_0000, 512, False)
    soc.finalize()
    text = str(platform.get_verilog(soc, name="soc"))
    # The instance's output `irq` is the bit of the CPU's interrupts that `soc.h` names.
    net = re.search(r"\.irq\s*\((\w+)\)", text)[1]
    assert re.search(rf"interrupt\[{number}\] <= {net};", text)


@pytest.mark.filterwarnings("ignore")  # of LiteX
def test_wider_controller():
    """A controller wider than the core's bus is refused, as its converter stops; without `sdram` the SoC is built."""
    from amaranth_tpu.hw.examples.soc.litex_dram import DramSoc

    with pytest.raises(
        ValueError, match=r"^LiteDRAM's controller has 64 bits, the core's bus 32: .* or call add_tpu without sdram"
    ):
        DramSoc(Config(n=2), "ddr3", "dram", [])
    DramSoc(Config(n=2), "ddr3", "wishbone", [])

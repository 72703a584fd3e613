"""Simulates a network on a core in a LiteX SoC with LiteDRAM and its model of the memory: cycles by the port of the core.

python -m amaranth_tpu.hw.examples.soc.litex_dram --model c --n 4 --memory ddr3 --port dram
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    from litedram.modules import IS42S16160, MT41K256M8
    from litedram.phy.model import SDRAMPHYModel
    from litex.build.generic_platform import GenericPlatform, Pins
    from litex.soc.integration.soc_core import SoCMini
    from litex.soc.interconnect.axi import AXILiteInterface
except ModuleNotFoundError as error:
    sys.exit(f"error: {sys.executable} has no package {error.name}; install it with: pip install litex litedram")

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.examples.soc.litex_soc import Clocks, connect, pins
from amaranth_tpu.hw.examples.soc.litex_tpu import add_tpu
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.data.samples import random_samples
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import core_input, run_network
from amaranth_tpu.sim.host.host_image import cycle_limit
from amaranth_tpu.sim.host.inference import InferenceImage
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.rtl.host_memory import parse_memory
from amaranth_tpu.sim.rtl.native_cells import with_native_cells
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of

CORE_BASE, MEMORY_BASE, CLOCK = 0x3000_0000, 0x4000_0000, 100e6
#: The memories by name: LiteDRAM's module, its ratio of clocks, bits of the chip, and the memory that predicts cycles.
MEMORIES = {"ddr3": (MT41K256M8, "1:4", 8, "ddr3-800x8"), "sdram": (IS42S16160, "1:1", 16, "sdram-100x16")}
PORTS = ("dram", "axi", "wishbone")


class DramSoc(SoCMini):
    """A SoC with LiteDRAM, whose host is outside. The core has its own port to LiteDRAM, or is a manager on the SoC's bus."""

    def __init__(self, config, memory, port, contents):
        host = AXILiteInterface(data_width=32, address_width=32)
        platform = GenericPlatform(
            "", [("clk", 0, Pins(1)), ("rst_n", 0, Pins(1)), ("irq", 0, Pins(1)), pins("s_axil", host)], name="soc"
        )
        standard, width = ("axi", config.bus_width) if port == "axi" else ("wishbone", 32)
        plain = {"with_timer": False, "with_uart": False, "ident": "", "ident_version": False}
        super().__init__(platform, clk_freq=CLOCK, bus_standard=standard, bus_data_width=width, **plain)
        self.submodules.crg = Clocks(platform)
        kind, rate, bits, _ = MEMORIES[memory]
        module = kind(CLOCK, rate)
        self.submodules.phy = SDRAMPHYModel(module, data_width=bits, clk_freq=CLOCK, init=contents)
        self.add_sdram("sdram", phy=self.phy, module=module, origin=MEMORY_BASE, l2_cache_size=0)
        core = add_tpu(self, config, CORE_BASE, sdram=self.sdram if port == "dram" else None)
        self.bus.add_master("host", host)
        self.comb += platform.request("irq").eq(core.ev.irq)
        self.comb += connect(host, platform.request("s_axil"), manager_inside=False)


def soc_verilog(config, memory, port, contents, folder):
    """Returns the Verilog of the SoC with its core. The contents of the memory are in files in `folder`."""
    soc = DramSoc(config, memory, port, np.frombuffer(contents, "<u4").tolist())
    soc.finalize()
    made = soc.platform.get_verilog(soc, name="soc", regular_comb=False)
    for name, text in made.data_files.items():
        (Path(folder) / name).write_text(text)
    return made.main_source.replace('$readmemh("', f'$readmemh("{folder}/')


def simulate(name, config, memory, port, folder, seed=1):
    """Runs one random sample. Returns `(predicted cycles, cycles, bits that differ from the golden model)`."""
    network = load_network(SHIPPED.get(name, name))
    samples = core_input(network, random_samples(network, 1, seed).rows)
    program = compile_network(network, config, 1)
    image = InferenceImage(program, samples)
    verilog = with_native_cells(verilog_of(config), config.cell_stages)
    simulation = Simulation(
        simulator="verilator",
        verilog=verilog + soc_verilog(config, memory, port, image.bytes, folder),
        top="soc",
        public=("clk", "rst_n", "irq", "s_axil_*"),
        no_inline=("tpu_cell", "tpu_row"),
        quick=True,
    )
    regions = {key: (MEMORY_BASE + base, size) for key, (base, size) in image.batches[0]["regions"].items()}
    found = simulation.run(
        "amaranth_tpu.sim.benches.bench_litex",
        timeout=3000,
        arguments={"core": CORE_BASE, "regions": regions, "limit": cycle_limit(program)},
    )
    logits = image.results(np.array(found["output"], np.uint32).view(np.uint8))
    expected = run_network(network, samples)
    differing = int(np.bitwise_count(logits.view(np.uint32) ^ expected.view(np.uint32)).sum())
    predicted = program.with_host(parse_memory(f"{MEMORIES[memory][3]}@{CLOCK / 1e6:g}")).predicted_cycles
    return predicted, found["cycles"], differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="c", help="a shipped network, or an ONNX file")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--memory", choices=MEMORIES, default="ddr3")
    parser.add_argument("--port", choices=PORTS, default="dram", help="a port to LiteDRAM, or the bus of the SoC")
    options = parser.parse_args()
    logging.disable(logging.INFO)  # LiteX tells every step
    with tempfile.TemporaryDirectory() as folder:
        predicted, cycles, differing = simulate(options.model, Config(n=options.n), options.memory, options.port, folder)
    print(f"{options.memory}, {options.port}: {cycles:,} cycles, {predicted:,} predicted ({cycles / predicted:.2f}), ", end="")
    print(f"{differing} bits different")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()

"""The simulation of the system in Verilator: core, CPU and serial line. It is built once, and run with different contents of the
RAM."""

import importlib.util
import os
import re
from pathlib import Path

from amaranth_tpu.hw.boards.uart import UartTransmitter, bit_step
from amaranth_tpu.hw.tools.process import ToolError, build_directory, execute, made_once
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.rtl.cpp_program import cpp_program
from amaranth_tpu.sim.rtl.memory_images import write_image
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of

__all__ = ["build_system", "cpu_verilog", "run_system"]

_HERE = Path(__file__).resolve().parent
_SOURCES = ("peripherals.sv", "cpu_bus.sv", "system.sv", "bench.sv")
_PACKAGE = "pythondata_cpu_vexriscv"
#: Size of the RAM, and width of a line of the CPU's cache in bits: the widest possible bus.
RAM_BYTES, _WIDEST = 1 << 21, 256
#: Cycles of a bit on the serial line: `BIT` of bench.sv.
_BIT = 16
#: Prefix of the lines that the bench prints.
_END = "bench: "


def cpu_verilog():
    """Returns the Verilog of VexRiscv, in the variant with caches of 4 KiB. Raises ToolError if its package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ToolError(f"no Python package {_PACKAGE}, the CPU; install it with: pip install {_PACKAGE.replace('_', '-')}")
    return (Path(next(iter(spec.submodule_search_locations))) / "verilog" / "VexRiscv.v").read_text()


def _uart_verilog():
    return component_to_verilog(UartTransmitter(step=bit_step(_BIT, 1)), name="uart_transmitter")


def build_system(config):
    """Builds the simulation with this core and returns its path.

    Raises
    ------
    ToolError
        If a tool is missing, the build fails, or the core's bus is wider than a line of the CPU's cache.
    """
    if config.bus_width > _WIDEST:
        raise ToolError(f"the example's CPU reads lines of {_WIDEST} bits, the bus has {config.bus_width}; take --n 16 or less")
    cpu = cpu_verilog()
    uart = build_directory() / "verilog" / f"uart-{_BIT}.v"
    made_once(uart, lambda partial: partial.write_text(_uart_verilog()), 600)
    sources = [*(_HERE / name for name in _SOURCES), _HERE.parent / "soc" / "soc.sv"]
    simulation = Simulation(
        simulator="verilator",
        verilog="\n".join([verilog_of(config), uart.read_text(), cpu]),
        sources=(*sources, _HERE.parents[2] / "sim" / "rtl" / "axi_memory.sv"),
        top="bench",
        parameters={"BUS_WIDTH": config.bus_width},
        public=("clk", "rst_n"),
        no_inline=("tpu_cell", "tpu_row"),
    )
    return cpp_program(simulation, (_HERE / "main.cpp").read_text())


def run_system(program, image, config, folder, *, latency, limit, show=None, timeout=3600):
    """Runs the firmware, and returns its output lines and its exit status.

    Parameters
    ----------
    program : Path
        Result of :func:`build_system`.
    image : bytes
        Contents of RAM.
    latency : int
        Latency of the RAM until the first beat, in cycles.
    limit : int
        Most cycles of the simulation.
    show : callable or None
        Called with each line as soon as it is printed.

    Returns
    -------
    (list of str, int)

    Raises
    ------
    ToolError
        If the firmware does not fit the RAM, or does not end within the limit.
    """
    if len(image) > RAM_BYTES:
        raise ToolError(
            f"the firmware with its data has {len(image)} bytes, the RAM {RAM_BYTES}; take a smaller model or fewer images"
        )
    write_image(folder / "memory.hex", image, config.bus_bytes)
    words = [f"+memory={folder / 'memory.hex'}", f"+latency={latency}", f"+limit={limit}"]
    said, shown = folder / "said.txt", 0

    def watch():
        nonlocal shown
        lines = _lines(said)
        for line in lines[shown:]:
            show(line)
        shown = len(lines)

    with open(said, "wb") as log:
        try:
            execute(
                [str(program), *words], cwd=folder, env=dict(os.environ), log=log, timeout=timeout, watch=watch if show else None
            )
        except TimeoutError as error:
            raise ToolError(f"the simulation: {error}") from None
    end = said.read_text(errors="replace").partition(_END)[2].split("\n")[0]
    if not (found := re.fullmatch(r"status (\d+) after \d+ cycles", end)):
        raise ToolError(f"the simulation ended without a status: {end or 'it said nothing of its end'} (log: {said})")
    return _lines(said), int(found[1])


def _lines(path):
    return path.read_text(errors="replace").partition(_END)[0].split("\n")[:-1]

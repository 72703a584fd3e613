"""The array's cell and arrays of 16 x 16 cells in standard cells, and layouts of the cell."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.spec.cell_stages import STAGES
from amaranth_tpu.hw.standard_cells.layout import cell_layout
from amaranth_tpu.hw.standard_cells.libraries import load_library
from amaranth_tpu.hw.standard_cells.mapping import map_design
from amaranth_tpu.hw.standard_cells.report import array_figures
from amaranth_tpu.hw.tools.process import build_directory
from amaranth_tpu.hw.verilog.export import component_to_verilog

from ..show.terminal import spinner
from .common import Json, Write, app, publish

__all__ = ["cell_layouts", "standard_cells"]

_N = 16


def _row(figure):
    cell, array = figure["cell"], figure["array"]
    return [
        figure["library"],
        figure["stages"],
        f"{cell['area_um2']:,.0f}",
        f"{cell['gate_equivalents']:,}",
        cell["registers"],
        f"{cell['delay_ns']:.2f}",
        f"{cell['energy_pj']:.3g}",
        f"{cell['energy_with_glitches_pj']:.3g}",
        f"{array['area_um2'] / 1e6:.3g}",
        f"{array['energy_pj'] / 1e3:.3g}",
    ]


@app.command()
def standard_cells(
    targets: Annotated[str, typer.Option(help="Names of libraries that Debian packages install.")] = "osu018",
    liberty: Annotated[Path | None, typer.Option(help="Liberty file, in the place of targets.")] = None,
    stages: Annotated[str, typer.Option(help="Numbers of pipeline stages of the cell.")] = ",".join(map(str, STAGES)),
    as_json: Json = False,
    write: Write = False,
):
    """Measure the cell and the array of 16 x 16 cells in standard cells: area, delay and energy."""
    libraries = [load_library(None, liberty)] if liberty else [load_library(target) for target in targets.split(",")]
    figures = []
    with spinner(Console(stderr=True), "mapping") as show:
        for text, library in libraries:
            for number in map(int, stages.split(",")):
                show(f"{library.name}, {number} stages")
                folder = build_directory() / "standard_cells" / f"{library.name}-{number}"
                cell, array = array_figures(_N, number, text, library, folder)
                figures.append({"library": library.name, "stages": number, "cell": cell, "array": array})
    head = ["library", "stages", "µm²", "gate equivalents", "registers", "delay, ns", "pJ a MAC", "pJ a MAC with glitches"]
    head += [f"{_N} x {_N}, mm²", f"{_N} x {_N}, nJ a cycle, extrapolated"]
    publish("standard-cells", head, [_row(figure) for figure in figures], figures, as_json, write)


@app.command("cell-layout")
def cell_layouts(
    stages: Annotated[str, typer.Option(help="Numbers of pipeline stages of the cell.")] = "3",
    as_json: Json = False,
    write: Write = False,
):
    """Place and route the cell with Debian's qflow in osu018: area, wires and delay of its layout."""
    text, library = load_library("osu018")
    figures, rows = [], []
    with spinner(Console(stderr=True), "placing and routing") as show:
        for number in map(int, stages.split(",")):
            show(f"{number} stages")
            folder = build_directory() / "cell_layout" / str(number)
            mapped = map_design(component_to_verilog(Cell(stages=number), name="tpu_cell"), "tpu_cell", text, library, folder)
            layout, without = cell_layout(mapped.netlist["tpu_cell"], "osu018", folder), mapped.delays["tpu_cell"] * 1e9
            figures.append({"stages": number, "delay_without_wires_ns": without, **layout})
            sizes = [f"{layout[name]:,.0f}" for name in ("area_um2", "cells", "nets", "wire_mm")]
            rows.append(
                [number, *sizes, f"{without:.2f}", f"{layout['delay_ns']:.2f}", layout["drc_errors"], layout["lvs_errors"]]
            )
    head = ["stages", "µm²", "cells", "nets", "wires, mm", "ns without wires", "ns with wires", "DRC errors", "LVS errors"]
    publish("cell-layout", head, rows, figures, as_json, write, [(number,) for number in STAGES])

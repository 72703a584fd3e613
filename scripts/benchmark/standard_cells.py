"""The array's cell and arrays of 16 x 16 cells in standard cells."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.spec.cell_stages import STAGES
from amaranth_tpu.hw.standard_cells.libraries import load_library
from amaranth_tpu.hw.standard_cells.report import array_figures
from amaranth_tpu.hw.tools.process import build_directory

from ..show.terminal import spinner
from .common import Json, Write, app, publish

__all__ = ["standard_cells"]

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

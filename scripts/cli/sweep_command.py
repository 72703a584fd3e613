"""The command `tpu sweep`: cycles and area of models on many cores, and the Pareto front."""

import csv
import io
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.sim.data.whole_files import write_file
from amaranth_tpu.sim.models.shipped import SHIPPED

from ..show.sweep import check_front, draw_front, show_sweep
from ..show.terminal import progress_bar
from .cells_option import CellKind, cells_option, check_cells_option
from .command_line import Effort, EffortOption, Json, ShapeOption, console, show_line
from .core_options import CoreChoice, cores_of
from .json_output import model_object, print_json
from .memory_option import DEFAULT_MEMORY, host_of, memory_option
from .outputs import Output, check_outputs
from .spread_options import Scheduler, Workers, check_spread, spread_of

__all__ = ["EXAMPLES", "sweep"]

EXAMPLES = """
Core options take several values, separated by commas: every combination is a point.

Examples:

`tpu sweep --model default,c --n 4,8,16,32 --batch 1,32`: sixteen points, estimated in seconds

`tpu sweep --n 4,8 --cell-stages 3,9 --synth ecp5-85 --checkpoint DIR --plot front.svg`: plots LUTs against cycles

`tpu sweep --model c --n 8,16 --simulator verilator --cells native --scheduler tcp://10.0.0.1:8786 --csv points.csv`
"""

_MOST = 10_000  # points


class Cycles(StrEnum):
    ESTIMATED = "estimated"
    VERILATOR = "verilator"
    ICARUS = "icarus"


class SizeMeasure(StrEnum):
    CELLS = "cells"
    MEMORY = "memory_bits"
    LUT = "lut"
    FF = "ff"
    DSP = "dsp"
    BRAM = "bram"


def sweep(
    core: CoreChoice,
    model: Annotated[str, typer.Option(help="ONNX files or shipped networks, separated by commas.")] = "default",
    shape: ShapeOption = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "32",
    simulator: Annotated[
        Cycles,
        typer.Option(
            metavar="NAME",
            help="estimated: cycles from the compiler's timing model. verilator, icarus: RTL simulation with random samples.",
        ),
    ] = Cycles.ESTIMATED,
    cells: cells_option() = CellKind.RTL,
    synth: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="Synthesize each core for this FPGA, as `tpu synth` does, and count LUTs, FFs, DSPs and BRAMs."
        ),
    ] = None,
    area: Annotated[
        SizeMeasure | None,
        typer.Option(
            metavar="NAME",
            help="Measure of a core's size: cells (n x n) or memory_bits; with --synth also lut, ff, dsp, bram. Default: lut "
            "with --synth, else cells.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save each finished point in this folder. A later sweep computes only the missing points.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write all points to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot area against cycles to this .svg, .png or .pdf file (needs matplotlib).")
    ] = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    memory: memory_option() = DEFAULT_MEMORY,
    effort: EffortOption = Effort.BEST,
    as_json: Json = False,
):
    """Estimate or measure cycles and area of models on many core configurations, and mark the Pareto front."""
    from amaranth_tpu.hw.fpga.targets import find_target
    from amaranth_tpu.sim import tpu
    from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
    from amaranth_tpu.sim.sweeps.sweep import front, grid, run_sweep

    area = (area or (SizeMeasure.LUT if synth else SizeMeasure.CELLS)).value
    if area not in ("cells", "memory_bits") and not synth:
        raise typer.BadParameter(f"{area} is a result of synthesis; name an FPGA with --synth", param_hint="--area")
    if synth:
        synth = find_target(synth).name
    check_cells_option(cells, simulator.value)
    check_spread(scheduler, workers)
    host_of(memory)
    _check_places(model.split(","), checkpoint, csv_file, plot)
    points = grid(model.split(","), _cores(core, as_json), _batches(batch))
    if len(points) > _MOST:
        raise typer.BadParameter(f"{len(points):,} points are too many; give fewer values, for at most {_MOST:,} points")
    for name in model.split(","):
        tpu.load(name, shapes=parse_shapes(shape), strict=True)  # report a model that cannot be read before the work
    identities = {name: model_object(name) for name in model.split(",")}
    rtl = None if simulator is Cycles.ESTIMATED else simulator.value
    faster = "fewer points; more --workers, or a cluster with --scheduler"
    with spread_of(scheduler, workers) as spread, progress_bar(console, "sweeping (points and cores)", faster) as advance:
        found = run_sweep(
            points,
            simulator=rtl,
            cells=cells.value,
            effort=effort.value,
            memory=memory,
            shapes=shape or (),
            target=synth,
            folder=checkpoint,
            spread=spread,
            progress=advance,
        )
    best = front(found, area)
    rows = [point.row | {"front": point in best} for point in found]
    if csv_file:
        write_file(csv_file, _as_csv(rows).encode())
    if plot:
        draw_front(plot, rows, area, "measured" if rtl else "estimated")
    if as_json:
        objects = [{"model": identities[point.model], "core": asdict(point.core), "batch": point.batch} for point in found]
        points = [one | point.figures | {"front": row["front"]} for one, point, row in zip(objects, found, rows)]
        kind = cells.value if rtl else None
        print_json({"effort": effort.value, "cell_kind": kind, "area": area, "points": points})
    else:
        show_sweep(Console(), rows, area)


def _check_places(models, checkpoint, csv_file, plot):
    check_outputs(
        {"--model": [SHIPPED.get(model) or model for model in models]},
        Output("--checkpoint", checkpoint, folder=True),
        Output("--csv", csv_file, (".csv",)),
        Output("--plot", plot),
    )
    if plot:
        check_front(plot)


def _cores(choice, quiet):
    cores, refused = cores_of(choice)
    if not cores:
        raise refused[0]
    if refused and not quiet:
        show_line(f"skipped {len(refused)} invalid cores, such as: {refused[0]}")
    return cores


def _batches(text):
    sizes = text.split(",")
    if not all(one.isascii() and one.isdecimal() and 0 < len(one) < 7 and int(one) for one in sizes):
        raise typer.BadParameter(f"takes numbers of at least 1 separated by commas, not {text!r}", param_hint="--batch")
    return [*dict.fromkeys(map(int, sizes))]


def _as_csv(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

"""Measurements of the public networks of MLPerf Tiny, in the form in which they are published."""

from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, from_preset
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.rtl.host_memory import DEFAULT_HOST, parse_memory
from amaranth_tpu.sim.tpu.places import Simulator

from ..cli.board_clock import own_memory
from .common import Json, Write, app, publish

__all__ = ["core_of", "mlperf_tiny"]


def _head(simulator):
    """Returns the headings of the table. They say that cycles are estimated if the RTL is not simulated (`simulator` is
    `model`)."""
    cycles = "cycles" if simulator == "verilator" else "cycles, estimated"
    time = "\N{MICRO SIGN}s at the board's clock"
    return [
        "network",
        "n",
        "batch",
        "MACs a sample",
        cycles,
        time,
        "utilisation",
        "of the bound",
        "bus words",
        "largest error",
        "bits different",
    ]


#: The board whose own core and memory have the rows of its n, for the preset `default`.
_BOARD = BOARDS["ulx3s-85f"]


def core_of(preset, n):
    """Returns `(configuration, host memory, clock of the board in MHz or None)` of the rows of an array size."""
    own = from_preset(_BOARD.preset)
    if preset == "default" and n == own.n:
        return own, parse_memory(own_memory(_BOARD)), _BOARD.clock_mhz
    return from_preset(preset, n=n), DEFAULT_HOST, None


def _measured(path, core, batch, simulator):
    """Runs a network on normally distributed samples. Returns `(cells of its row, figures for JSON)`. A network that does not fit
    has no figures.

    Parameters
    ----------
    path : Path
        ONNX file.
    core : tuple
        See :func:`core_of`.
    batch : int
    simulator : str
        `verilator` for the RTL, or `model` for the instruction-level model.
    """
    config, host, clock = core
    model, n = tpu.load(path), config.n
    x = np.random.default_rng(1).normal(size=(batch, *model.inputs[0].shape[1:])).astype(np.float32)
    try:
        run = model.run(x, Simulator(simulator, memory=host.plusargs(config)), core=config, batch=batch)
    except CompileError:
        return [path.stem, n, batch, "does not fit", *[""] * 7], {"network": path.stem, "n": n, "batch": batch, "cycles": None}
    program, result, error = run.program.with_host(host), run.result, run.compare()
    cycles = result.cycles or program.predicted_cycles
    figures = {
        "network": path.stem,
        "n": n,
        "batch": batch,
        "macs": program.useful_macs // batch,
        "cycles": cycles,
        "microseconds": cycles / clock if clock else None,
        "utilisation": program.useful_macs / n**2 / cycles,
        "of_bound": program.bound / cycles,
        "bus_words": program.cost.read_beats + program.cost.write_beats,
        "error": error.largest / error.scale,
        "mismatched_bits": result.mismatched_bits,
    }
    cells = [path.stem, n, batch, f"{figures['macs']:,}", f"{cycles:,}"]
    cells += [f"{cycles / clock:,.0f}" if clock else "", f"{figures['utilisation']:.1%}"]
    cells.append(f"{figures['of_bound']:.1%}")
    return [*cells, f"{figures['bus_words']:,}", f"{figures['error']:.2%}", figures["mismatched_bits"]], figures


@app.command()
def mlperf_tiny(
    models: Annotated[Path, typer.Option(help="Folder with the ONNX files.")],
    names: Annotated[str, typer.Option(help="Names of networks.")] = "ic,kws,vww,ad",
    sizes: Annotated[str, typer.Option(help="Array sizes.")] = "8,16",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    simulator: Annotated[
        str, typer.Option(help="verilator, or model: the instruction-level model, with estimated cycles.")
    ] = "verilator",
    preset: Annotated[str, typer.Option(help="Preset of the core. Only the table of default is written.")] = "default",
    as_json: Json = False,
    write: Write = False,
):
    """Measure the networks of MLPerf Tiny: cycles by `tpu run --model NAME.onnx --preset P --n N --images B --batch B`."""
    if preset not in PRESETS:
        raise typer.BadParameter(f"must be one of {', '.join(PRESETS)}, not {preset}", param_hint="--preset")
    if write and preset != "default":
        raise typer.BadParameter("writes the table of the preset default; leave out --preset", param_hint="--write")
    jobs = list(product(names.split(","), map(int, sizes.split(",")), map(int, batches.split(","))))
    shown = track(jobs, "running", console=Console(stderr=True), transient=True)
    made = [_measured(models / f"{network}.onnx", core_of(preset, n), batch, simulator) for network, n, batch in shown]
    rows, figures = zip(*made)
    publish("mlperf-tiny", _head(simulator), rows, figures, as_json, write)

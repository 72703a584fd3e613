"""Measurements of the public networks of MLPerf Tiny, in the form in which they are published."""

from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu

from .common import Json, Write, app, publish

__all__ = ["mlperf_tiny"]


def _head(simulator):
    """Returns the headings of the table. They say that cycles are estimated if the RTL is not simulated (`simulator` is
    `model`)."""
    cycles = "cycles" if simulator == "verilator" else "cycles, estimated"
    return ["network", "n", "batch", "MACs a sample", cycles, "utilisation", "bus words", "largest error", "bits different"]


def _measured(path, config, batch, simulator):
    """Runs a network on normally distributed samples. Returns `(cells of its row, figures for JSON)`.

    Parameters
    ----------
    path : Path
        ONNX file.
    config : Config
    batch : int
    simulator : str
        `verilator` for the RTL, or `model` for the instruction-level model.
    """
    model = tpu.load(path)
    x = np.random.default_rng(1).normal(size=(batch, *model.inputs[0].shape[1:])).astype(np.float32)
    run, n = model.run(x, simulator, core=config, batch=batch), config.n
    program, result, error = run.program, run.result, run.compare()
    cycles = result.cycles or program.predicted_cycles
    figures = {
        "network": path.stem,
        "n": n,
        "batch": batch,
        "macs": program.useful_macs // batch,
        "cycles": cycles,
        "utilisation": program.useful_macs / n**2 / cycles,
        "bus_words": program.read_beats + program.write_beats,
        "error": error.largest / error.scale,
        "mismatched_bits": result.mismatched_bits,
    }
    cells = [path.stem, n, batch, f"{figures['macs']:,}", f"{cycles:,}", f"{figures['utilisation']:.1%}"]
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
    transpose: Annotated[bool, typer.Option(help="Cores with `transpose`.")] = False,
    unified_buffer_depth: Annotated[int, typer.Option(help="Vectors in the unified buffer.")] = Config.unified_buffer_depth,
    as_json: Json = False,
    write: Write = False,
):
    """Measure the networks of MLPerf Tiny: cycles by `tpu run --model NAME.onnx --n N --images B --batch B`.

    `--transpose` and `--unified-buffer-depth` are passed on.
    """
    jobs = list(product(names.split(","), map(int, sizes.split(",")), map(int, batches.split(","))))
    shown = track(jobs, "running", console=Console(stderr=True), transient=True)
    made = [
        _measured(
            models / f"{name}.onnx", Config(n=n, transpose=transpose, unified_buffer_depth=unified_buffer_depth), batch, simulator
        )
        for name, n, batch in shown
    ]
    rows, figures = zip(*made)
    publish("mlperf-tiny", _head(simulator), rows, figures, as_json, write)

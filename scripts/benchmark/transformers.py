"""Measurements of transformers: encoder blocks with random weights."""

from itertools import product
from typing import Annotated

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.tools.process import build_directory
from amaranth_tpu.sim import tpu

from .common import Json, Write, app, publish
from .encoder_block import encoder_block

__all__ = ["transformers"]

#: Name in the table to tokens, width, heads and hidden width.
_BLOCKS = {"ViT block": (16, 64, 4, 256), "encoder block": (64, 64, 4, 256), "wide encoder block": (64, 128, 4, 512)}
_HEAD = [
    "network",
    "tokens",
    "width",
    "n",
    "batch",
    "MACs a sample",
    "cycles",
    "utilisation",
    "of the bound",
    "rms error",
    "bits different",
]


def _macs(tokens, width, hidden):
    """Returns the number of multiply-accumulates of an encoder block, per sample: four projections, attention, and the
    feed-forward network."""
    return tokens * width * (4 * width + 2 * tokens + 2 * hidden)


@app.command()
def transformers(
    sizes: Annotated[str, typer.Option(help="Array sizes.")] = "8,16",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8",
    preset: Annotated[str, typer.Option(help="Preset of the core.")] = "transformer",
    rtl: Annotated[bool, typer.Option("--rtl", help="Simulate the RTL instead of the instruction-level model.")] = False,
    as_json: Json = False,
    write: Write = False,
):
    """Measure encoder blocks: cycles by the timing model, or with `--rtl` by the RTL; bits and error by a run."""
    folder = build_directory() / "transformers"
    folder.mkdir(exist_ok=True)
    rows, figures = [], []
    jobs = [*product(_BLOCKS, map(int, sizes.split(",")), map(int, batches.split(",")))]
    for name, n, batch in track(jobs, "running", console=Console(stderr=True), transient=True):
        tokens, width, heads, hidden = _BLOCKS[name]
        path = folder / f"{name.replace(' ', '_')}.onnx"
        onnx.save(encoder_block(tokens, width, heads, hidden), path)
        x = np.random.default_rng(1).normal(size=(batch, tokens, width)).astype(np.float32)
        run = tpu.load(path).run(x, "verilator" if rtl else "model", core=from_preset(preset, n=n), batch=batch)
        error, macs = run.compare(), _macs(tokens, width, hidden)
        cycles = run.result.cycles or run.program.predicted_cycles
        figure = {
            "name": name,
            "n": n,
            "batch": batch,
            "macs": macs,
            "cycles": cycles,
            "utilisation": macs * batch / n**2 / cycles,
            "of_bound": run.program.bound / cycles,
            "error": error.rms / error.scale,
            "mismatched_bits": run.result.mismatched_bits,
        }
        figures.append(figure)
        rows.append(
            [
                *(name, tokens, width, n, batch, f"{macs:,}", f"{cycles:,}"),
                *(f"{figure['utilisation']:.1%}", f"{figure['of_bound']:.1%}"),
                *(f"{figure['error']:.2%}", figure["mismatched_bits"]),
            ]
        )
    publish("transformers", _HEAD, rows, figures, as_json, write)

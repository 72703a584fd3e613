"""Measurements of training: the accuracy of networks, and the cycles of a step on one core and on several cores."""

import functools
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from .common import Json, Write, app, publish, run_tpu

__all__ = ["cores", "train_command", "training"]

#: Rows of the table `training`: (network, epochs, batch, steps on the core, other options).
_TRAINED = (
    ("default", 5, 64, 200, ""),
    ("default", 1, 64, 20, "--update-lanes 4"),
    ("default", 1, 64, 20, "--clip-norm 1"),
    ("default", 5, 128, 20, ""),
    ("default", 5, 512, 5, "--rate 0.4 --transpose --unified-buffer-depth 16384 --accumulator-depth 2048"),
    ("a", 10, 64, 5, ""),
    ("a", 1, 64, 3, "--transpose"),
    ("b", 1, 64, 0, ""),
    ("c", 2, 64, 3, ""),
    ("a", 10, 1024, 0, "--optimizer adam --dropout 0.5"),
)


def train_command(network, epochs, batch, steps, options, data):
    """Returns the arguments of `tpu` that make a row of the table `training`. `steps` is the number of steps that also run on the
    core."""
    where = ["--data", str(data.resolve())] if data else []
    sizes = ["--epochs", str(epochs), "--batch", str(batch), "--rtl-steps", str(steps)]
    return ["train", "--model", network, *where, *sizes, *options.split()]


@app.command()
def training(
    data: Annotated[Path, typer.Option(help="Folder with MNIST as IDX files.")],
    names: Annotated[str, typer.Option(help="Names of networks.")] = "default,a,b,c",
    only: Annotated[str, typer.Option(help="Only rows with these options; the page keeps the other rows.")] = "",
    most: Annotated[int, typer.Option(help="Most steps to run on the core.")] = 200,
    as_json: Json = False,
    write: Write = False,
):
    """Measure the accuracy of networks trained from fresh weights, and the cycles of a step, by `tpu train`."""
    figures, rows = [], []
    jobs = [(*job[:3], min(job[3], most), job[4]) for job in _TRAINED if job[0] in names.split(",") and only in job[4]]
    for job in track(jobs, "training", console=Console(stderr=True), transient=True):
        network, epochs, batch, steps, options = job
        figure = run_tpu(*train_command(*job, data))
        figures.append(figure)
        timed = steps and [
            f"{figure['cycles_per_step']:,.0f}",
            f"{figure['utilisation']:.1%}",
            f"{figure['bound'] / figure['cycles_per_step']:.1%}",
            figure["mismatched_bits"],
        ]
        rows.append(
            [
                network,
                *_key(network, epochs, batch, options)[1:],
                f"{figure['epochs'][-1]['loss']:.4f}",
                f"{figure['accuracy']:.2%}",
                steps,
                *(timed or [""] * 4),
            ]
        )
    head = ["network", "options", "epochs", "batch", "loss", "accuracy", "steps on the core"]
    keys = [_key(*job[:3], job[4]) for job in _TRAINED]
    publish(
        "training", [*head, "cycles a step", "utilisation", "of the bound", "bits different"], rows, figures, as_json, write, keys
    )


def _key(network, epochs, batch, options):
    return network, f"`{options}`" if options else "", epochs, batch


def _cycles_of_one(n, batch):
    """Returns the cycles, by the timing model, of a training step of 784-128-10 on one n x n core without a ring."""
    from amaranth_tpu.hw.config import from_preset
    from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
    from amaranth_tpu.sim.compiler.step import compile_step
    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.ir.optimizers import Sgd
    from amaranth_tpu.sim.models.shipped import SHIPPED

    training = with_parameters(load_network(SHIPPED["default"]))
    return compile_step(training, Sgd(), from_preset("training", n=n), batch).predicted_cycles


@app.command()
def cores(
    counts: Annotated[str, typer.Option(help="Numbers of cores.")] = "1,2,4,8",
    batches: Annotated[str, typer.Option(help="Batch sizes over all cores.")] = "128,512",
    n: int = 8,
    steps: Annotated[
        int, typer.Option(help="Steps in the RTL; 0: one on the instruction-level model, with estimated cycles.")
    ] = 0,
    as_json: Json = False,
    write: Write = False,
):
    """Measure the cycles of a step on P cores in a ring, against one core with the same batch B, and the words each core sends.

    The efficiency is T1(B / P) / TP(B) by the timing model: the cycles of one core with its share of the batch, divided by the
    cycles of P cores with the whole batch.
    """
    figures, rows, alone = [], [], {}
    one = functools.cache(functools.partial(_cycles_of_one, n))
    jobs = [(batch, count) for batch in batches.split(",") for count in counts.split(",")]
    for batch, count in track(jobs, "cores", console=Console(stderr=True), transient=True):
        how = ["--rtl-steps", str(steps)] if steps else ["--rtl-steps", "1", "--simulator", "model"]
        figure = run_tpu("train", "--epochs", "1", "--n", str(n), "--batch", batch, "--cores", count, "--in-flight", "16", *how)
        figures.append(figure)
        cycles, ring = figure["cycles_per_step"] or figure["estimated_cycles"], figure["ring"] or {}
        if count == "1":
            alone[batch] = cycles
        faster = f"{alone[batch] / cycles:.2f}" if batch in alone else ""
        counted = [*map(max, [ring["words_sent"]] if ring.get("words_sent") else [])]
        words = [f"{words // figure['rtl_steps']:,}" for words in (*counted, *([ring["formula"]] if ring else []))]
        figure["efficiency"] = one(int(batch) // int(count)) / figure["estimated_cycles"]
        shown = [f"{cycles:,.0f}", f"{figure['bound'] / cycles:.1%}", faster, f"{figure['efficiency']:.1%}"]
        rows.append([batch, count, *shown, *([""] * (1 + bool(steps) - len(words))), *words])
        rows[-1].append(figure["mismatched_bits"])
    head = [
        "batch",
        "cores",
        "cycles a step" if steps else "cycles a step, estimated",
        "of the bound",
        "times as fast",
        "efficiency",
    ]
    words = ["words a core sends, counted", "words a core sends, by the formula"][0 if steps else 1 :]
    publish("cores", [*head, *words, "bits different"], rows, figures, as_json, write)

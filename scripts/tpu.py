"""The command `tpu`, with the subcommands generate, run, train, sweep, text, chat, compile, package and synth."""

import gc
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.config import PRESETS, ConfigError
from amaranth_tpu.hw.spec.ring_size import MOST_CORES
from amaranth_tpu.hw.verilog.header import package_version, source

from .cli import (
    chat_command,
    compile_command,
    generate_command,
    package_command,
    run_command,
    sweep_command,
    text_command,
    train_command,
)
from .cli.command_line import Json, RunFailed, console, run_app, show_error, show_line, usable_folder
from .cli.core_options import CoreChoice, takes_core
from .cli.flags import FlagCommand, FlagGroup
from .cli.json_output import print_json
from .show.terminal import show_synthesis, spinner

app = typer.Typer(cls=FlagGroup, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def _show_version(asked: bool):
    if asked:
        commit = source()
        print(f"amaranth-tpu {package_version()}{f' ({commit})' if commit else ''}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="""
All commands share the core's options; `--preset` is one of """
    + ", ".join(f"`{name}`" for name in PRESETS)
    + """.
Every command has `--help`, with examples.
""",
)
def commands(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version, and the commit if known.")
    ] = False,
):
    """A bfloat16 TPU with a systolic array: generate its Verilog, run and train ONNX models on it, and synthesize it."""
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")
        raise typer.Exit(2)


app.command(cls=FlagCommand, epilog=generate_command.EXAMPLES)(takes_core()(generate_command.generate))
app.command(cls=FlagCommand, epilog=run_command.EXAMPLES)(takes_core()(run_command.run))
app.command(cls=FlagCommand, epilog=train_command.EXAMPLES)(takes_core("training")(train_command.train))
app.command(cls=FlagCommand, epilog=sweep_command.EXAMPLES)(takes_core(several=True)(sweep_command.sweep))
app.command(cls=FlagCommand, epilog=text_command.EXAMPLES)(takes_core()(text_command.text))
app.command(cls=FlagCommand, epilog=chat_command.EXAMPLES)(takes_core("transformer")(chat_command.chat))
app.command("compile", cls=FlagCommand, epilog=compile_command.EXAMPLES)(takes_core()(compile_command.compile_model))
app.command(cls=FlagCommand, epilog=package_command.EXAMPLES)(takes_core()(package_command.package))


def _targets():
    from amaranth_tpu.hw.fpga.targets import target_names
    from amaranth_tpu.hw.standard_cells.libraries import LIBRARIES

    return [*target_names(), *LIBRARIES]


@app.command(
    cls=FlagCommand,
    epilog="""
Examples:

`tpu synth --target ecp5-85 --preset tiny`: check whether it fits

`tpu synth --target ecp5-25 --preset tiny --n 2 --cell-stages 9 --pnr`: find its Fmax

`tpu synth --target ulx3s-85f --paths`: its longest paths, without place and route

`tpu synth --target ulx3s-85f --pnr`: bitstream of the board's core

`tpu synth --target ecp5-85 --cores 2 --preset ulx3s-45f --pnr`: two cores in a ring on the part of the ULX3S-85F

`tpu synth --target osu018 --preset tiny`: area, delay and energy in standard cells
""",
)
@takes_core(default="the board's, or `default`")
def synth(
    core: CoreChoice,
    target: Annotated[
        str,
        typer.Option(
            help="Board or FPGA, such as `ulx3s-85f` or `ecp5-85`, or standard cells: `osu018`, `osu035`. An unknown name prints "
            "the list.",
            autocompletion=_targets,
        ),
    ] = "ecp5-85",
    liberty: Annotated[
        Path | None, typer.Option(help="Liberty file of standard cells, such as Nangate45 or sky130, in the place of --target.")
    ] = None,
    cores: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_CORES,
            help="Number of cores, connected in a ring. More than one switches `--ring` on. Not for boards.",
        ),
    ] = 1,
    pnr: Annotated[bool, typer.Option("--pnr", help="Also place and route: Fmax, critical path, bitstream or layout.")] = False,
    paths: Annotated[
        bool,
        typer.Option(
            "--paths",
            help="Also analyse the timing of the netlist: the longest paths inside and between blocks. Takes minutes where --pnr "
            "takes an hour. Wires are estimates.",
        ),
    ] = False,
    across_blocks: Annotated[
        bool,
        typer.Option(
            "--across-blocks",
            help="With --pnr or --paths: flatten the hierarchy before mapping, for a smaller and "
            "faster netlist. Counts per block are then approximate.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=1, help="Seed of place and route.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for reports, logs and bitstream. Default: a new one in build/synth."),
    ] = None,
    as_json: Json = False,
):
    """Synthesize a core with Yosys and report resources per block; with `--pnr`, place and route with nextpnr.

    Exits with 0 if the design fits, memories map to block RAM and multipliers to DSPs as intended, there is no latch and, for a
    board, timing closes at its clock. A bitstream that misses timing is written, but reported as an error. For standard cells,
    the report has area, delay and energy, and names what they leave out. With `--pnr`, Debian's qflow makes the layout of the
    array's cell, without design rule errors and with the mapped netlist.
    """
    from amaranth_tpu.hw.standard_cells.libraries import is_standard_cells

    if liberty or is_standard_cells(target):
        from .cli.synth_cells import synth_cells

        refused = {"--paths": paths, "--across-blocks": across_blocks, "--cores": cores > 1}
        synth_cells(core, target, liberty, pnr, refused, output, as_json)
        return
    from amaranth_tpu.hw.fpga.implement import implement
    from amaranth_tpu.hw.fpga.targets import find_target
    from amaranth_tpu.hw.tools.process import build_directory

    place = find_target(target)
    if cores > 1:
        core.changes.setdefault("ring", True)
    config = core.config(place.board.preset if place.board else "default")
    folder = output or build_directory() / "synth" / (f"{place.name}-n{config.n}" + (f"x{cores}" if cores > 1 else ""))
    usable_folder(folder)
    with spinner(console, f"n = {config.n} for {place.name}") as show:
        options = {"pnr": pnr, "paths": paths, "across_blocks": across_blocks, "seed": seed}
        report = implement(config, place, folder, cores=cores, **options, progress=show)
    if as_json:
        print_json({name: value for name, value in report.items() if name != "config"}, core=config)
    else:
        show_synthesis(Console(), report)
    for error in report["errors"][:-1]:
        show_error(error)
    if report["errors"]:
        raise RunFailed(report["errors"][-1], [*report["advice"], f"reports and logs: {folder}"])
    for line in report["advice"]:
        show_line(line)


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    gc.set_threshold(
        100_000, 20, 100
    )  # default thresholds: a third of the time of `generate` goes into garbage collection of the netlist
    run_app(app, _expected)


def _expected():
    """Returns the exceptions that are printed as one line. They are imported only after an error, to keep the command's start
    fast."""
    from amaranth_tpu.hw.fpga.synthesis import SynthesisError
    from amaranth_tpu.hw.fpga.targets import TargetError
    from amaranth_tpu.hw.standard_cells.liberty import LibertyError
    from amaranth_tpu.hw.tools.process import ToolError
    from amaranth_tpu.sim.check.interpreters import InterpreterError
    from amaranth_tpu.sim.compiler.errors import CompileError
    from amaranth_tpu.sim.data.digits import DataError
    from amaranth_tpu.sim.host.board import BoardError
    from amaranth_tpu.sim.host.inference import RunError
    from amaranth_tpu.sim.host.serial_link import LinkError
    from amaranth_tpu.sim.ir.errors import ModelError
    from amaranth_tpu.sim.rtl.runner import SimulationError
    from amaranth_tpu.sim.trainer.errors import TrainingError

    return (
        ConfigError,
        ModelError,
        DataError,
        CompileError,
        ToolError,
        SimulationError,
        TrainingError,
        TargetError,
        SynthesisError,
        LibertyError,
        LinkError,
        BoardError,
        InterpreterError,
        RunError,
        RunFailed,
        OSError,
    )


if __name__ == "__main__":
    main()

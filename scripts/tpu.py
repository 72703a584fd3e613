"""The command `tpu`, with the subcommands generate, run, train, sweep, text, compile and synth."""

import gc
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.config import PRESETS, ConfigError
from amaranth_tpu.hw.spec.ring_size import MOST_CORES
from amaranth_tpu.hw.verilog.header import package_version, source
from amaranth_tpu.sim.data.whole_files import write_file

from .cli import compile_command, run_command, sweep_command, text_command, train_command
from .cli.command_line import Json, RunFailed, console, run_app, show_error, show_line, usable_folder
from .cli.core_options import CoreChoice, takes_core
from .cli.flags import FlagCommand, FlagGroup
from .cli.json_output import print_json
from .cli.outputs import Output, check_outputs
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


@app.command(
    cls=FlagCommand,
    epilog="""
Examples:

`tpu generate -o tpu.v`: the default core

`tpu generate --n 32 --cell-stages 5 --bus-width 256 -o tpu.v`

`tpu generate --preset plain --n 8 -o tpu.v`: without POOL, TABLE, SOFTMAX

`tpu generate --n 4 --name edge -o edge.v`: module `edge`, beside another core in one design

`tpu generate --cores 4 --n 8 --training -o pod.v`: four cores in a ring
""",
)
@takes_core()
def generate(
    core: CoreChoice,
    output: Annotated[Path, typer.Option("-o", "--output", help="Verilog file to write.")] = Path("tpu.v"),
    cores: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_CORES, help="Number of cores. More than one switches `--ring` on; the top module is then `tpu_pod`."
        ),
    ] = 1,
    link_latency: Annotated[int, typer.Option(min=0, max=64, help="Pipeline registers in each link between cores.")] = 0,
    name: Annotated[
        str, typer.Option(help="Name of the top module and prefix of all others. Cores with different names can share a design.")
    ] = "tpu",
    as_json: Json = False,
):
    """Generate the Verilog of a core, or of several cores in a ring, as one file. The top module is `tpu` or `tpu_pod`."""
    from amaranth_tpu.hw.verilog.export import pod_to_verilog, to_verilog

    if cores > 1:
        core.changes.setdefault("ring", True)
    elif link_latency:
        raise typer.BadParameter("only several cores have links; add --cores", param_hint="--link-latency")
    config = core.config()
    check_outputs({}, Output("-o", output, (".v", ".sv")))
    started = time.perf_counter()
    with spinner(console, f"generating n = {config.n}"):
        if cores > 1:
            text = pod_to_verilog(config, cores=cores, link_latency=link_latency, source=source(), name=name)
        else:
            text = to_verilog(config, source=source(), name=name)
    write_file(output, text.encode())
    result = {
        "file": str(output),
        "n": config.n,
        "cores": cores,
        "bytes": len(text),
        "modules": text.count("\nmodule "),
        "seconds": round(time.perf_counter() - started, 3),
    }
    if as_json:
        print_json(result, core=config)
    else:
        size = f"{cores} cores of n = {config.n}" if cores > 1 else f"n = {config.n}"
        console.print(
            f"[green]{output}[/]: {size}, {result['modules']} modules, {len(text) / 1e6:.2f} MB in {result['seconds']:.1f} s"
        )


app.command(cls=FlagCommand, epilog=run_command.EXAMPLES)(takes_core()(run_command.run))
app.command(cls=FlagCommand, epilog=train_command.EXAMPLES)(takes_core("training")(train_command.train))
app.command(cls=FlagCommand, epilog=sweep_command.EXAMPLES)(takes_core(several=True)(sweep_command.sweep))
app.command(cls=FlagCommand, epilog=text_command.EXAMPLES)(takes_core()(text_command.text))
app.command("compile", cls=FlagCommand, epilog=compile_command.EXAMPLES)(takes_core()(compile_command.compile_model))


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
    pnr: Annotated[bool, typer.Option("--pnr", help="Also place and route: Fmax, critical path, bitstream.")] = False,
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
    the report has area, delay and energy, and names what they leave out.
    """
    from amaranth_tpu.hw.standard_cells.libraries import is_standard_cells

    if liberty or is_standard_cells(target):
        from .cli.synth_cells import synth_cells

        refused = {"--pnr": pnr, "--paths": paths, "--across-blocks": across_blocks, "--cores": cores > 1}
        synth_cells(core, target, liberty, refused, output, as_json)
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
    from amaranth_tpu.sim.compiler.compile import CompileError
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
        RunError,
        RunFailed,
        OSError,
    )


if __name__ == "__main__":
    main()

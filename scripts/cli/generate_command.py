"""The command `tpu generate`: writes the Verilog of a core, or of several cores in a ring."""

import time
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.hw.spec.ring_size import MOST_CORES
from amaranth_tpu.hw.verilog.header import source
from amaranth_tpu.sim.data.whole_files import write_file

from ..show.terminal import spinner
from .command_line import Json, console
from .core_options import CoreChoice
from .json_output import print_json
from .outputs import Output, check_outputs

__all__ = ["EXAMPLES", "CoresOption", "LatencyOption", "NameOption", "config_of", "generate", "size_text", "verilog_text"]

EXAMPLES = """
Examples:

`tpu generate -o tpu.v`: the default core

`tpu generate --n 32 --cell-stages 5 --bus-width 256 -o tpu.v`

`tpu generate --preset plain --n 8 -o tpu.v`: without POOL, TABLE, SOFTMAX

`tpu generate --n 4 --name camera -o camera.v`: module `camera`, beside another core in one design

`tpu generate --cores 4 --n 8 --training -o pod.v`: four cores in a ring
"""

CoresOption = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_CORES, help="Number of cores. More than one switches `--ring` on; the top module is then `tpu_pod`."
    ),
]
LatencyOption = Annotated[int, typer.Option(min=0, max=64, help="Pipeline registers in each link between cores.")]
NameOption = Annotated[
    str, typer.Option(help="Name of the top module and prefix of all others. Cores with different names can share a design.")
]


def config_of(core, cores, link_latency):
    """Returns the configuration that the options ask for. Raises typer.BadParameter if they contradict each other."""
    if cores > 1:
        core.changes.setdefault("ring", True)
    elif link_latency:
        raise typer.BadParameter("only several cores have links; add --cores", param_hint="--link-latency")
    return core.config()


def verilog_text(config, cores, link_latency, name):
    """Returns the Verilog of the cores."""
    from amaranth_tpu.hw.verilog.export import pod_to_verilog, to_verilog

    with spinner(console, f"generating n = {config.n}"):
        if cores > 1:
            return pod_to_verilog(config, cores=cores, link_latency=link_latency, source=source(), name=name)
        return to_verilog(config, source=source(), name=name)


def size_text(config, cores):
    return f"{cores} cores of n = {config.n}" if cores > 1 else f"n = {config.n}"


def generate(
    core: CoreChoice,
    output: Annotated[Path, typer.Option("-o", "--output", help="Verilog file to write.")] = Path("tpu.v"),
    cores: CoresOption = 1,
    link_latency: LatencyOption = 0,
    name: NameOption = "tpu",
    as_json: Json = False,
):
    """Generate the Verilog of a core, or of several cores in a ring, as one file. The top module is `tpu` or `tpu_pod`."""
    config = config_of(core, cores, link_latency)
    check_outputs({}, Output("-o", output, (".v", ".sv")))
    started = time.perf_counter()
    text = verilog_text(config, cores, link_latency, name)
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
        console.print(
            f"[green]{output}[/]: {size_text(config, cores)}, {result['modules']} modules, {len(text) / 1e6:.2f} MB "
            f"in {result['seconds']:.1f} s"
        )

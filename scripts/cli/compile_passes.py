"""The options `--passes` and `--print-after` of `tpu compile`, which show the passes of the compiler and their results."""

from typing import Annotated

import typer
from rich.console import Console

from ..show.terminal import compiling, figure_table, print_table
from .command_line import console
from .json_output import print_json

__all__ = ["PassesOption", "PrintAfterOption", "print_passes", "print_text_after"]

PassesOption = Annotated[bool, typer.Option("--passes", help="List the passes of the compiler and exit.")]
PrintAfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="PASS",
        help="Print the graph after this pass as text and exit. Prints every variant of the graph that the search compares. "
        "`lower` prints the sums of products of each variant, and their matrices. `program` prints the tensors, the tiling and "
        "the instructions of the compiled program.",
    ),
]


def print_passes(as_json):
    from amaranth_tpu.sim.compiler.passes.pipeline import PASSES

    if as_json:
        print_json({"passes": {one.name: one.description for one in PASSES}})
        return
    table = figure_table("Passes of the compiler, in order", ("name", "word"), ("description", "word"), ("variants", "word"))
    for one in PASSES:
        table.add_row(one.name, one.description, "without and with" if one.optional else "")
    print_table(Console(), table)


def print_text_after(name, load, config, batch, effort, as_json):
    """Prints the text of the graph after the pass `name`, of the sums, or of the program. `load()` returns the network. Raises
    CompileError if there is no such pass."""
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.compiler.compile_graph import lowered_step, network_of
    from amaranth_tpu.sim.compiler.lowering.sums_text import sums_text
    from amaranth_tpu.sim.compiler.passes.pipeline import LOWER, PROGRAM, run_passes, up_to
    from amaranth_tpu.sim.compiler.program_text import program_text

    passes = up_to(name)
    if name == PROGRAM:
        with compiling(console) as advance:
            texts = [program_text(compile_network(load(), config, batch, effort, advance))]
    else:
        graph = load()
        variants = run_passes(passes, graph, config, batch)
        if name == LOWER:
            texts = [sums_text(lowered_step(network_of(one), config, batch)) for one in variants]
        else:
            texts = [str(network_of(one)) for one in variants]
    if as_json:
        print_json({"after": name, "texts": texts})
    else:
        print("\n\n".join(texts))

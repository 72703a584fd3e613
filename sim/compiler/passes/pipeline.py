"""The list of the passes, in the order in which they run. Each pass takes a graph and returns a graph; no pass changes a bit of a
result.

Some passes help only some networks. The graph continues both without and with such a pass, as two variants, and the search keeps
the faster program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from ...ir.bias_rows import split_bias_rows
from ...ir.errors import ModelError
from ..errors import CompileError
from .cropping import crop
from .depthwise import map_depthwise
from .factors import widen_factors
from .neighbours import fold_columns
from .split_kernels import split_kernels
from .split_large import split_large
from .split_pool import split_windows

__all__ = ["LOWER", "LOWERING", "MAPPING", "PASSES", "PROGRAM", "Pass", "run_passes", "up_to"]


@dataclass(frozen=True)
class Pass:
    """A pass of the compiler."""

    name: str
    description: str  # one sentence
    #: Callable. `run(graph, config, batch)` returns the new :class:`.Graph`. It returns `graph` itself if the pass changes
    #: nothing.
    run: Callable
    optional: bool = False  # True if the search compares the graph without and with this pass


def _without_bias_rows(graph, config, batch):
    """Returns the graph with a stage for each bias, if the core has no bias rows for positions. Raises CompileError."""
    try:
        return graph if config.attention else split_bias_rows(graph)
    except ModelError as error:
        raise CompileError(str(error)) from None


#: Passes after which the core can run every stage.
LOWERING = (
    Pass("crop", "Removes the positions of results that no stage reads.", crop),
    Pass("split-bias-rows", "Replaces biases of single positions by stages, if the core lacks attention.", _without_bias_rows),
    Pass("split-pooling", "Splits max pooling along x and y if the sums of a window do not fit the accumulators.", split_windows),
    Pass("split-large", "Splits stages if the sums of a line do not fit the accumulators.", split_large),
    Pass("split-kernels", "Splits kernels into terms if the windows of a line do not fit the unified buffer.", split_kernels),
    Pass("widen-factors", "Writes factors with one channel to all lanes, as products need them.", widen_factors),
)
#: Passes that choose how tensors are mapped to vectors.
MAPPING = (
    Pass("pack-columns", "Packs neighbouring columns of tensors with few channels into one vector.", fold_columns, optional=True),
    Pass(
        "positions-in-lanes",
        "Maps depthwise convolutions with positions, not channels, in the lanes, if the core has transpose.",
        map_depthwise,
        optional=True,
    ),
)
PASSES = (*LOWERING, *MAPPING)
#: Names of what follows all passes: the sums of products, and the compiled program.
LOWER, PROGRAM = "lower", "program"


def run_passes(passes, graph, config, batch):
    """Runs passes. Returns the variants of the graph, a list that begins with the graph without any optional pass. Raises
    CompileError if a stage cannot be lowered for this core."""
    variants = [graph]
    for one in passes:
        made = [one.run(variant, config, batch) for variant in variants]
        if one.optional:
            variants += [new for new, variant in zip(made, variants) if new is not variant]
        else:
            variants = made
    return variants


def up_to(name):
    """Returns the passes up to and including the pass `name`; all passes for `LOWER` and `PROGRAM`. Raises CompileError if there
    is no such pass."""
    names = [*(one.name for one in PASSES), LOWER, PROGRAM]
    if name not in names:
        nearest = get_close_matches(name, names, 1, 0)[0]
        raise CompileError(f"pass {name!r}: does not exist; did you mean {nearest!r}? `tpu compile --passes` lists all passes")
    return PASSES[: names.index(name) + 1]

"""The compiler: graph, configuration and batch -> program, memory images and what they will cost.

The passes, one after the other:

1. Maxima over large windows are split (:mod:`sim.compiler.split_pool`).
2. Neighbouring positions of few channels go side by side in a vector, where that is faster (:mod:`sim.compiler.neighbours`).
3. Depthwise convolutions get positions in the lanes, where the core has `transpose` and that is faster
   (:mod:`sim.compiler.turning`).
4. The host gathers the windows of few channels (im2col, :mod:`sim.compiler.im2col`).
5. The search (:mod:`sim.compiler.search`) tries choices, and keeps the best. For each of them:

   a. the batch goes along x (:mod:`sim.compiler.batching`), and tensors get places in host memory (:mod:`sim.compiler.layout`);
   b. stages are tiled (:mod:`sim.compiler.tiling`, :mod:`sim.compiler.chunk_tiling`), and tensors between those that overlap
      stay in the unified buffer where there is room (:mod:`sim.compiler.resident`);
   c. instructions are emitted (:mod:`sim.compiler.codegen`);
   d. they are scheduled (:mod:`sim.compiler.scheduling`), and the program is simulated (:mod:`sim.compiler.timing`).

6. The best is written down (:mod:`sim.compiler.image`).
"""

from dataclasses import replace

import numpy as np

from ..ir.functions import NONE
from .im2col import fold
from .image import HostMemory, make_program
from .neighbours import fold_columns
from .program import CompileError, Program, disassemble
from .search import search
from .split_pool import split_windows
from .turning import turn

__all__ = ["CompileError", "Program", "check_batch", "compile_network", "disassemble"]


#: Samples of a run. A program has instructions for each chunk of a batch, and gains nothing beyond some hundred samples.
_MOST_SAMPLES = 1 << 16


def check_batch(batch):
    """Raises CompileError if `batch` is not a number of samples that a run can have."""
    if not isinstance(batch, (int, np.integer)) or batch < 1:
        raise CompileError(f"batch must be an integer of at least 1, not {batch!r}")
    if batch > _MOST_SAMPLES:
        raise CompileError(f"batch of {batch}: a run has at most {_MOST_SAMPLES} samples; do several runs")


def compile_network(graph, config, batch):
    """Compiles for batches of `batch` samples.

    Raises
    ------
    CompileError
        If even the smallest tiles of a stage do not fit, or the images leave the 32-bit offsets.
    """
    check_batch(batch)
    graph = split_windows(graph, config.accumulator_depth)
    _check(graph.stages, config)
    choice, schedule = _fastest(graph, config, int(batch))
    memory = HostMemory(choice.batched, choice.host, config)
    plans = [plan for run in choice.runs for plan in run.plans]
    return make_program(memory, plans, schedule, config)


def _fastest(graph, config, batch):
    """:class:`Choice` and :class:`Schedule`, the best."""
    best = None
    for tensors, stages in _ways(graph, config, batch):
        stages, gathers = fold(replace(graph, stages=stages), config.n)
        found = search(graph, stages, gathers, config, batch, tensors)
        if best is None or (found[1].cycles or found[1].draft.cycles) < (best[1].cycles or best[1].draft.cycles):
            best = found
    return best


def _ways(graph, config, batch):
    """`(tensors, stages)` of the graph: with neighbouring positions side by side or not, with depthwise convolutions turned or
    not."""
    folded = fold_columns(graph, config.n)
    ways = [(graph.tensors, graph.stages), *([folded[:2]] if folded else [])]
    if config.transpose:
        turned = [turn(replace(graph, stages=stages), tensors, config.n, batch) for tensors, stages in ways]
        ways += [way for way in turned if way]
    return ways


def _check(stages, config):
    """That the core has what the stages need."""
    for stage in stages:
        lacking = [
            (stage.pool, config.pooling, "pooling"),
            (stage.softmax, config.softmax, "softmax"),
            (any(term.data for term in stage.terms), config.training, "training"),
            (stage.function.is_table or stage.times, config.table_lanes, "table_lanes"),
        ]
        for needed, there, name in lacking:
            if needed and not there:
                raise CompileError(
                    f"stage {stage.name}: needs a core with {name}; set it in its configuration (--{name.replace('_', '-')})"
                )
        if stage.times and (stage.pool or stage.softmax or stage.function != NONE):
            raise ValueError(f"stage {stage.name}: a product goes with neither pooling nor a function")

"""The compiler: graph, configuration and batch size -> program, memory images and cycle estimates.

1. The passes of :mod:`sim.compiler.passes.pipeline` rewrite the graph. `tpu compile --passes` lists them. Optional passes give
   several variants of the graph.
2. The search (:mod:`sim.compiler.search`) compares candidates for each variant and keeps the fastest. For each candidate:

   a. the batch is stored along x (:mod:`sim.compiler.memory.batching`), and tensors are allocated in host memory
      (:mod:`sim.compiler.memory.layout`);
   b. stages are tiled (:mod:`sim.compiler.tiling.stage_tiling`, :mod:`sim.compiler.tiling.chunk_tiling`), and tensors between
      overlapping stages stay resident in the unified buffer if they fit (:mod:`sim.compiler.tiling.resident`). Equal branches,
      such as the heads of an attention, overlap (:mod:`sim.compiler.tiling.branches`);
   c. instructions are emitted (:mod:`sim.compiler.codegen.generate`). Function tables are loaded while earlier runs leave the
      activation unit idle (:mod:`sim.compiler.codegen.tables_ahead`);
   d. instructions are scheduled (:mod:`sim.compiler.codegen.scheduling`), and the timing model simulates the program
      (:mod:`sim.compiler.timing.model`).
3. The fastest candidate is encoded (:mod:`sim.compiler.image`) and cached on disk (:mod:`sim.compiler.program_cache`).
"""

from functools import partial

import numpy as np

from ..functions.functions import NONE
from .decisions import decision_of
from .image import HostMemory, make_code, make_program
from .passes.pipeline import LOWERING, MAPPING, run_passes
from .program import CompileError, Program, check_unit, disassemble
from .program_cache import key_of, load, store
from .search import Trials, search

__all__ = ["CompileError", "Program", "EFFORTS", "check_batch", "check_effort", "compile_network", "disassemble"]

#: Extents of the search: see :func:`compile_network`.
EFFORTS = ("fast", "best")


#: Largest batch size. A program has instructions for each chunk of a batch; batches beyond some hundred samples gain no
#: speed.
_MOST_SAMPLES = 1 << 16


def check_batch(batch):
    """Raises CompileError if `batch` is not an integer from 1 to the largest supported batch size."""
    if not isinstance(batch, (int, np.integer)) or batch < 1:
        raise CompileError(f"batch must be an integer of at least 1, not {batch!r}")
    if batch > _MOST_SAMPLES:
        raise CompileError(f"batch of {batch}: a run has at most {_MOST_SAMPLES} samples; do several runs")


def check_effort(effort):
    """Raises CompileError if `effort` is not one of `EFFORTS`."""
    if effort not in EFFORTS:
        raise CompileError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r}")


def compile_network(graph, config, batch, effort="best", progress=None):
    """Compiles a graph for batches of `batch` samples. Programs compiled before, by any process, are loaded from a cache on disk
    (:mod:`sim.compiler.program_cache`).

    Parameters
    ----------
    effort : str
        One of `EFFORTS`. `best` searches for the schedule with the fewest cycles; `fast` takes the first schedule that fits.
    progress : callable or None
        Called with `(done, total)`, the number of schedules tried so far and the number planned. `total` may grow.

    Raises
    ------
    CompileError
        If the smallest tiles of a stage do not fit, or the images exceed the 32-bit offsets.
    """
    check_batch(batch)
    check_effort(effort)
    batch, key = int(batch), key_of(graph, config, int(batch), effort)
    (graph,) = run_passes(LOWERING, graph, config, batch)
    _check(graph.stages, config)
    variants = run_passes(MAPPING, graph, config, batch)
    found = load(key)
    if found:
        decision, code = found
        choice = decision.choice(graph, variants[decision.variant], config, batch)
        emit = partial(decision.emit, choice, config)
        return make_program(HostMemory(choice.batched, choice.host, config), choice.plans, code, emit, config)
    number, choice, schedule = _fastest(graph, variants, config, batch, effort, Trials(progress))
    memory = HostMemory(choice.batched, choice.host, config)
    code = make_code(memory, schedule, config)
    store(key, decision_of(number, choice, schedule), code)
    return make_program(memory, choice.plans, code, partial(tuple, schedule.ops), config)


def _fastest(graph, variants, config, batch, effort, trials):
    """Searches all variants of the graph. Returns `(index, Choice, Schedule)` for the program with the fewest cycles, with the
    index of its variant. `trials` counts the schedules for progress reports."""
    best = None
    for number, variant in enumerate(variants):
        found = search(graph, variant, config, batch, fast=effort == "fast", trials=trials)
        if best is None or found[1].cycles < best[2].cycles:
            best = number, *found
    return best


def _check(stages, config):
    """Raises CompileError if the core lacks a unit that a stage needs."""
    for stage in stages:
        needs = {"pooling": stage.pool, "softmax": stage.softmax, "attention": any(term.data for term in stage.terms)}
        needs["table_lanes"] = stage.function.is_table or stage.times
        for unit, needed in needs.items():
            check_unit(config, unit, needed, f"stage {stage.name}:")
        if stage.times and (stage.pool or stage.softmax or stage.function != NONE):
            raise ValueError(f"stage {stage.name}: a product cannot be combined with pooling, softmax or a function")

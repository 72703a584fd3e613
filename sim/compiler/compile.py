"""The compiler of networks: graph, configuration and batch size -> program, memory images and cycle estimates.

1. The passes of :mod:`sim.compiler.passes.pipeline` rewrite the graph. `tpu compile --passes` lists them. Optional passes give
   several variants of the graph.
2. Each variant is a step without state (:mod:`sim.compiler.lowering.network`). It is compiled as a training step is
   (:mod:`sim.compiler.order.search`).
3. The fastest program is cached on disk (:mod:`sim.compiler.program_cache`).
"""

import numpy as np

from ..functions.functions import NONE
from ..ir.stage import Norm
from .network_program import Network
from .passes.pipeline import LOWERING, MAPPING, run_passes
from .program import CompileError, Program, check_unit, disassemble
from .program_cache import key_of, load, store

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
        One of `EFFORTS`. `best` searches for the order with the fewest cycles; `fast` takes the first order that fits.
    progress : callable or None
        Called with `(done, total)`, the number of variants of the graph that are compiled, and of all variants.

    Raises
    ------
    CompileError
        If the smallest tiles of a stage do not fit, or the images exceed the 32-bit offsets.
    """
    check_batch(batch)
    check_effort(effort)
    batch, key = int(batch), key_of(graph, config, int(batch), effort)
    (graph,) = run_passes(LOWERING, graph, config, batch)
    _check(graph, config)
    variants = run_passes(MAPPING, graph, config, batch)
    found = load(key)
    if found:
        number, code = found
        return Network(graph, variants[number], config, batch).program(code)
    number, network, schedule = _fastest(graph, variants, config, batch, effort == "fast", progress)
    code = network.code(schedule)
    store(key, number, code)
    return network.program(code, schedule.ops)


def _fastest(graph, variants, config, batch, fast, progress):
    """Returns `(index, Network, Schedule)` of the variant of the graph with the fewest cycles. Raises the CompileError of the
    first variant if none fits."""
    best, fault = None, None
    for number, variant in enumerate(variants):
        try:
            network = Network(graph, variant, config, batch)
            schedule = network.search(fast)
        except CompileError as error:
            fault = fault or error
            continue
        finally:
            if progress:
                progress(number + 1, len(variants))
        if best is None or schedule.cycles < best[2].cycles:
            best = number, network, schedule
    if best is None:
        raise CompileError(f"stage {fault}") from None
    return best


def _check(graph, config):
    for stage in graph.stages:
        needs = {"pooling": stage.pool, "softmax": stage.softmax, "attention": any(map(graph.is_product, stage.terms))}
        needs["normalize"] = isinstance(stage.softmax, Norm)
        needs["table_lanes"] = stage.function.is_table or stage.times
        for unit, needed in needs.items():
            check_unit(config, unit, needed, f"stage {stage.name}:")
        if stage.times and (stage.pool or stage.softmax or stage.function != NONE):
            raise ValueError(f"stage {stage.name}: a product cannot be combined with pooling, softmax or a function")

"""From the graph of a network or of a training step to its fastest program.

1. The passes of :mod:`sim.compiler.passes.pipeline` rewrite the graph of a network. Several variants are compiled: graphs
   with and without optional passes, and steps with and without the update lanes.
2. Each variant becomes sums (:mod:`.lowering`), and instructions in many orders (:mod:`.order.search`).
3. The fastest program is cached on disk (:mod:`.program_cache`).
"""

from dataclasses import replace
from functools import cached_property, partial

from ..functions.functions import NONE
from ..ir.reshapes import without_reshapes
from ..ir.stage import Norm
from ..ir.step_macs import step_macs
from .codegen.constant_image import Constants
from .errors import CompileError, check_unit
from .image import code_of, program_of
from .lowering.lane_copies import with_lanes
from .lowering.lowering import lower, with_products_apart
from .lowering.update_lanes import use_update_lanes
from .network_memory import NetworkMemory
from .order.search import Order, emitted, search
from .passes.factors import widen_factors
from .passes.folding import fold
from .passes.pipeline import LOWERING, MAPPING, run_passes
from .passes.stacking import stacked
from .passes.ungrouping import ungrouped, without_groups
from .program_cache import key_of, load, most_bytes, store
from .program_tensors import tensors_of

__all__ = ["compile_graph", "explained", "lowered_step", "network_of"]

_QUICK = 4  # cycles of UPDATE per row, up to which sums in the array are not faster


def compile_graph(graph, config, batch, cores=1, fast=False, progress=None):
    """Compiles a network, or a training step for `batch` samples per core. Programs compiled before, by any process, are loaded
    from a cache on disk.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        A network, or a step of :func:`sim.autodiff.make_step.make_step`.
    config : Config
    batch : int
    cores : int
        Number of cores in the ring.
    fast : bool
        True: the first order of instructions that fits. False: the order with the fewest cycles.
    progress : callable or None
        Called with `(done, total)`: variants that are compiled, and all variants.

    Returns
    -------
    sim.compiler.program.Program
        Its `memory` is a :class:`.NetworkMemory`, or, of a step, :class:`.Lowered`.

    Raises
    ------
    CompileError
        If the graph does not fit the core. The message is one line.
    """
    batch = int(batch)
    key = key_of(graph, config, batch, cores, fast) if most_bytes() else None
    if not graph.state:
        (graph,) = run_passes(LOWERING, graph, config, batch)
    _check(graph, config, cores)
    variants = _variants(graph, config, batch, cores)
    if key and (found := load(key)):
        number, code = found
        return variants[number].program(code)
    number, schedule = _fastest(variants, fast, progress)
    code = variants[number].code(schedule)
    if key:
        store(key, number, code)
    return variants[number].program(code, schedule.ops)


def _variants(graph, config, batch, cores):
    if not graph.state:
        return [_Variant(graph, network_of(one), config, config, batch) for one in run_passes(MAPPING, graph, config, batch)]
    made = [_Variant(graph, graph, config, config, batch, cores)]
    if config.n > _QUICK * config.update_lanes > 0 and "momentum" in graph.factors:
        made.append(_Variant(graph, graph, config, replace(config, update_lanes=0), batch, cores))
    return made


def network_of(graph):
    """Returns the graph of a network that is lowered, from a graph after the passes: without reshapes, and without groups, except
    of depthwise convolutions."""
    return without_groups(without_reshapes(graph))


def _fastest(variants, fast, progress=None):
    """Returns `(index, Schedule)` of the variant with the fewest cycles. Raises the first CompileError if none fits."""
    found, faults = {}, []
    for number, variant in enumerate(variants):
        try:
            found[number] = search(variant.constants, variant.used, variant.cores, fast)
        except CompileError as error:
            faults.append(error)
        if progress:
            progress(number + 1, len(variants))
    if not found:
        raise type(faults[0])(explained(variants[0].given, faults[0])) from None
    return min(found.items(), key=lambda one: one[1].cycles)


def explained(graph, error):
    """Returns the message of an error, with the stage of a network, or the node of a network with parameters, in place of a
    tensor."""
    tensor, colon, cause = str(error).partition(": ")
    stages = [stage for stage in graph.stages if stage.name]
    titles = {
        one: graph.parameters and stage.title or f"stage {stage.name}" for stage in stages for one in (stage.output, stage.name)
    }
    return f"{titles.get(tensor.removeprefix('gradient of ').removesuffix('.weights'), tensor)}{colon}{cause}"


class _Variant:
    """A graph, as the search compiles it: the `given` one, lowered to `graph`. `used` is the configuration of the features that
    the program uses."""

    def __init__(self, given, graph, config, used, batch, cores=1):
        self.given, self.graph, self.config, self.used, self.batch, self.cores = given, graph, config, used, batch, cores

    @cached_property
    def constants(self):
        return Constants(lowered_step(self.graph, self.used, self.batch))

    def code(self, schedule):
        names = [] if self.given.state else [stage.name for stage in self.given.stages]
        return code_of(schedule, self.constants, self.used, names)

    def program(self, code, ops=()):
        """Returns the :class:`sim.compiler.program.Program` of a :class:`.Code`. `ops` are its instructions if they are known."""
        given, lowered = self.given, self.constants.lowered
        memory, macs = lowered, step_macs(given)
        if not given.state:
            memory, macs = NetworkMemory(given, lowered), sum(given.macs)
        emit = partial(self._numbered, ops) if ops else partial(self._emit, code)
        others = {"useful_macs": self.batch * macs, "memory": memory, "emit": emit, "batch": self.batch, "cores": self.cores}
        tensors = tensors_of(lowered, self.constants, self.cores)
        return program_of(code, self.constants, self.config, tensors=tensors, **others)

    def _emit(self, code):
        starts, *others = code.order
        ops, *_ = emitted(self.constants, self.used, self.cores, Order(tuple(starts), *others))
        return self._numbered([ops[place] for place in code.places])

    def _numbered(self, ops):
        """Replaces the names of a network's stages in the instructions by their numbers. Returns the instructions."""
        if not self.given.state:
            numbers = {stage.name: number for number, stage in enumerate(self.given.stages)}
            for op in ops:
                op.stage, op.parts = numbers.get(op.stage, 0), tuple((numbers.get(stage, 0), count) for stage, count in op.parts)
        return tuple(ops)


def lowered_step(step, config, batch):
    """Returns the :class:`.Lowered` of a step or a network."""
    made = widen_factors(with_products_apart(step), config, batch)
    folded = ungrouped(stacked(fold(with_lanes(made, config.n), config.n)))
    lowered = lower(folded, config.n, batch, step)
    if config.update_lanes and "momentum" in step.factors:
        use_update_lanes(lowered)
    return lowered


def _check(graph, config, cores):
    check_unit(config, "training", graph.state, "a training step")
    if cores > 1 and not config.ring:
        raise CompileError(f"{cores} cores need the ring; set it in their configuration (--ring)")
    for stage in graph.stages:
        is_table = stage.function.is_table
        title = f"{f'stage {stage.name}' if stage.name else stage.output}:" + f" its function {stage.function}" * is_table
        needs = {"pooling": stage.pool, "softmax": stage.softmax, "normalize": isinstance(stage.softmax, Norm)}
        needs["attention"] = not graph.state and any(map(graph.is_product, stage.terms))
        needs["table_lanes"] = is_table or stage.times
        for unit, needed in needs.items():
            check_unit(config, unit, needed, title)
        if not graph.state and stage.times and (stage.pool or stage.softmax or stage.function != NONE):
            raise ValueError(f"stage {stage.name}: a product cannot be combined with pooling, softmax or a function")

"""The search for the fastest program of a training step: divisions of the batch, and orders of the instructions."""

from dataclasses import replace
from typing import NamedTuple

from amaranth_tpu.hw.spec.isa import Opcode

from ..codegen.scheduling import completes, ordered
from ..program import CompileError, check_ring, check_unit
from ..timing.model import simulate
from .chunks import chunked, divisions
from .constants import Constants
from .dead_stores import without_dead_stores
from .emitter import MatrixEmitter
from .folding import fold
from .forms import NotMatrices
from .job_writer import JobWriter
from .lowering import lower, with_products_apart
from .ordering import woven
from .paced import is_paced, paced
from .program import make_step_program
from .ring import Gatherer, ReduceScatter
from .stacking import stacked
from .sums import MatrixSum
from .tiling import can_join, exchanged_rows, operand_rows, plan_sum
from .update_lanes import use_update_lanes

__all__ = ["compile_graph", "NotMatrices"]

_SIMULATED = 6_000  # instructions, over all orders after the first, whose cycles are compared
_MOST_SIMULATED = 30_000  # instructions, over all divisions of the batch
_PARTS = 2  # steps of convolutions: a job has one of so many parts of the sums it could have; so later layers begin earlier
_QUICK = 4  # cycles of UPDATE per row, up to which sums in the array are not faster
_ORDERS = ((1, 250), (1, 0), (0, 250))  # `eager` and `late` of :func:`ordered`


def compile_graph(step, config, batch, cores=1):
    """Compiles one training step for `batch` samples per core, on one core or on each core of a ring.

    `step` is a :class:`sim.ir.step.StepGraph` of :func:`sim.autodiff.make_step.make_step`. The other parameters and the result
    are as in :func:`sim.compiler.training.step.compile_step`.

    Raises
    ------
    CompileError
        If the step does not fit the core. The message is one line.
    """
    _check(step, config, cores)
    program = _compiled(step, config, batch, cores)
    if config.n <= _QUICK * config.update_lanes or not any(op.opcode is Opcode.UPDATE for op in program.ops):
        return program
    other = replace(_compiled(step, replace(config, update_lanes=0), batch, cores), config=config)
    return min(program, other, key=lambda one: one.predicted_cycles)


def _compiled(step, config, batch, cores):
    lowered = lower(stacked(fold(with_products_apart(step), config.n)), config.n, batch, step)
    if config.update_lanes and "momentum" in step.factors:
        use_update_lanes(lowered)
    search = _Search(lowered, config, cores)
    for starts in divisions(lowered.sums, config.n):
        search.attempt(starts, True)
    if search.best and search.best.has_begun:
        search.attempt(search.best.starts, False)
    if search.best is None:
        raise CompileError("no order of the instructions of this step comes to its end")
    return make_step_program(lowered, search.constants, config, cores, search.best.ops, search.best.cycles)


class _Best(NamedTuple):
    """The fastest instructions so far.

    Parameters
    ----------
    order : tuple of int or None
        `eager` and `late` of :func:`ordered`. None: the order in which they were emitted.
    starts : tuple of int
        First row of each chunk of the batch.
    has_begun : bool
        True if sums of a gradient begin before those of the last samples are known.
    """

    ops: list
    cycles: int
    order: tuple | None
    starts: tuple
    has_begun: bool


class _Search:
    """The search for the fastest instructions. After `_MOST_SIMULATED` instructions, it makes no more attempts.

    Members
    -------
    best : _Best or None
    constants : Constants
    """

    def __init__(self, lowered, config, cores):
        self.lowered, self.config, self.cores = lowered, config, cores
        self.best, self.constants, self.emitted = None, Constants(lowered), 0

    def attempt(self, starts, begins_early):
        """Times the instructions of a division of the batch, and keeps them if they are the fastest. The parameters are as in
        :func:`_emitted`."""
        if self.best and self.emitted > _MOST_SIMULATED:
            return
        emitter, has_begun = _emitted(self.constants, self.config, self.cores, starts, begins_early)
        ops = without_dead_stores(emitter.ops, self.lowered, self.config)
        self.emitted += len(ops)
        if not self.best or self.emitted <= _MOST_SIMULATED:
            self._keep_fastest(ops, starts, has_begun)

    def _keep_fastest(self, ops, starts, has_begun):
        """Times several orders of instructions, or only the order of the best so far. On a ring, also the order of emission."""
        config, cores, best = self.config, self.cores, self.best
        ideal = simulate(ops, config, ideal=True, cores=cores)
        again = [] if best is None else dict.fromkeys([best.order, None] if cores > 1 else [best.order])
        for order in again or [None, *_ORDERS[: max(1, _SIMULATED // len(ops))]]:
            made = ops if order is None else ordered(ops, ideal, *order)
            timeline = completes(made, config, cores) and simulate(made, config, limit=best and best.cycles, cores=cores)
            best = _Best(made, timeline.cycles, order, starts, has_begun) if timeline else best
        self.best = best


def _check(step, config, cores):
    """Raises CompileError if the core lacks a unit that the step needs."""
    functions = any(stage.function.is_table or stage.times for stage in step.stages)
    check_unit(config, "training", True, "a training step")
    check_unit(config, "table_lanes", functions, "a training step")
    check_ring(config, cores)


def _emitted(constants, config, cores, starts, begins_early):
    """Returns the emitter with all instructions of a step, and True if sums of a gradient begin before those of the last samples
    are known. They do only if `begins_early`. `starts` has the first row of each chunk of the batch."""
    lowered = constants.lowered
    emitter = MatrixEmitter(config, constants, cores)
    _prepare_exchanges(lowered, emitter)
    split = chunked([part for one in lowered.sums for part in _split(one, emitter)], config.n, starts, begins_early)
    emitter.parts = _PARTS if is_paced(split) else 1
    writer = JobWriter(emitter, split)
    for one, job in (paced if is_paced(split) else woven)(split, writer, config):
        writer.write(one, job)
    assert not writer.begun, f"{emitter.stage}: jobs are left unfinished"
    return emitter, writer.has_held


def _prepare_exchanges(lowered, emitter):
    """Divides the memories for the exchange of gradients between cores, and decides which gradients stay on the chip."""
    exchanges = {one.gradient: one for one in lowered.sums if isinstance(one, ReduceScatter)}
    if not exchanges:
        return
    pairs = [(one, exchanges[one.writes[0]]) for one in lowered.sums if one.results and one.writes[0] in exchanges]
    largest = max((one for _, one in pairs), key=lambda one: exchanged_rows(one, emitter))
    exchanged, count = exchanged_rows(largest, emitter), max(1, emitter.sums.size // largest.gradient.rows)
    emitter.divide_for_exchange([operand_rows(one) for one, _ in pairs], exchanged, min(count, largest.gradient.tiles))
    emitter.gatherer = Gatherer(emitter, lowered.gathers)
    for one, exchange in pairs:
        exchange.joined = 2 * one.shape.rows <= emitter.sums.size and can_join(one, exchange, emitter)


def _split(one, emitter):
    """Returns the parts of a sum with several functions by table, if it has more than two jobs."""
    if not isinstance(one, MatrixSum) or len([*plan_sum(one, emitter).jobs(one)]) <= 2:
        return [one]
    return one.split()

"""The search for the fastest program: divisions of the batch, and orders of the instructions."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...data.progress_lines import show
from ...data.time_left import TimeLeft
from ..codegen.dead_stores import without_dead_stores
from ..codegen.job_writer import JobWriter
from ..codegen.matrix_emitter import MatrixEmitter
from ..codegen.ring_jobs import Gatherer
from ..codegen.scheduling import completes, ordered
from ..errors import CompileError
from ..lowering.ring import ReduceScatter
from ..lowering.sums import MatrixSum
from ..tiling.chunks import chunked, divisions
from ..tiling.job_sizes import can_join, exchanged_rows, operand_rows, plan_sum
from ..timing.estimates import array_cycles
from ..timing.model import simulate
from ..tuning import LAYER_PARTS, MOST_ORDERED, MOST_SIMULATED, ORDERS, SHORT_PROGRAM, SIMULATED, STEP_ROWS, TRIED_ROWS
from .ordering import Pace, reads_windows

__all__ = ["Order", "Schedule", "changes", "emitted", "search"]

_EMISSION = 0.6  # the time of emitting instructions, in simulations of their cycles
_FASTER = "a larger array (`n`), which has fewer tiles, or a smaller batch"


def search(constants, config, cores=1, fast=False):
    """Returns the :class:`Schedule` with the fewest cycles. If `fast`, the first one. Raises CompileError."""
    found = _Search(constants, config, cores, fast)
    for change in changes(constants.lowered, config)[: 1 if fast else None]:
        with suppress(*[CompileError] * bool(found.best)):  # an order by samples needs more memory
            found.attempt(replace(found.best.order if found.best else Order(), **change))
    if found.best is None:
        raise CompileError("no order of the instructions of this step comes to its end")
    return found.best


def changes(lowered, config):
    """Returns the attempts of a search, a list of dicts. Each has the fields of :class:`Order` that it changes in the fastest
    order before."""
    if lowered.step.state:
        found = [{"starts": starts} for starts in divisions(lowered.sums, config.n)]
        rows = max(one.shape.rows for one in lowered.sums if isinstance(one, MatrixSum) and one.has_samples)
        if len(found) > 1 or rows <= STEP_ROWS or reads_windows(lowered.sums):
            return found
        return [{"most_rows": STEP_ROWS}, {"most_rows": 0}]
    return [{}] if reads_windows(lowered.sums) else [{}, {"by_samples": True}, {"most_rows": TRIED_ROWS}]


@dataclass(frozen=True)
class Order:
    """The choices from which the instructions are emitted."""

    starts: tuple = (0,)  # Tuple of int. First row of each chunk of the batch.
    #: Jobs have one sample, or few if samples are short. Those of the earliest samples are next: their operands are still on the
    #: chip, and other heads of an attention keep the array busy during a head's SOFTMAX.
    by_samples: bool = False
    most_rows: int = 0  # Largest number of rows of a job of sums that read no windows. 0: any.


class Schedule(NamedTuple):
    """Instructions in their final order."""

    ops: list
    cycles: int
    sorting: tuple | None  # `eager` and `late` of :func:`ordered`. None: the order in which they were emitted.
    order: Order
    places: np.ndarray  # for each instruction, its place in the order of emission
    image: dict  # of :class:`.MatrixEmitter`
    plans: dict  # Dict of str to str. Description of the jobs of each sum.


class _Search:
    """The search for the fastest instructions. After `MOST_SIMULATED` instructions, it makes no more attempts.

    Members
    -------
    best : Schedule or None
    """

    def __init__(self, constants, config, cores, fast):
        self.constants, self.config, self.cores, self.fast = constants, config, cores, fast
        self.best, self.emitted, self._left, self._shown = None, 0, None, False

    def attempt(self, order):
        """Times the instructions of an :class:`Order`, and keeps them if they are the fastest."""
        if self.best and self.emitted > MOST_SIMULATED:
            return
        ops, *made_with = emitted(self.constants, self.config, self.cores, order, self._tell)
        self.emitted += len(ops)
        if not self.best or self.emitted <= MOST_SIMULATED:
            self._keep_fastest(ops, order, made_with)
        if self._shown:
            show(None)

    def _tell(self, part, simulated=0):
        """Shows the remaining time of the first attempt. `part` of the instructions are emitted, and `simulated` times."""
        self._left = self._left or TimeLeft(_FASTER)  # the time before the first job says nothing about the others
        if not self.best and (text := self._left((_EMISSION * min(1, part) + simulated) / (_EMISSION + 2))):
            show(f"the first order of instructions: {text}")
            self._shown = True

    def _keep_fastest(self, ops, order, made_with):
        """Times several orders of instructions, or only the order of the best so far. On a ring, also the order of emission. Of
        very many instructions, times only the first order that completes."""
        config, cores, best, is_one = self.config, self.cores, self.best, self.fast or len(ops) > MOST_ORDERED
        ideal = simulate(ops, config, ideal=True, cores=cores)
        is_short = len(ops) <= SHORT_PROGRAM and not self.constants.lowered.step.state
        self._tell(1, 1)
        again = [] if best is None or is_short else dict.fromkeys([best.sorting, None] if cores > 1 else [best.sorting])
        tries = [ORDERS[0], None, *ORDERS[1:]] if is_one else [None, *ORDERS[: max(1, SIMULATED // len(ops))]]
        for sorting in again or tries:
            if is_one and best is not self.best:
                break
            made = ops if sorting is None else ordered(ops, ideal, *sorting)
            timeline = simulate(made, config, limit=best and best.cycles, cores=cores)
            if timeline and completes(made, config, cores):
                before, after = (np.fromiter(map(id, some), np.int64, len(some)).argsort() for some in (ops, made))
                places = np.empty(len(ops), np.int32)
                places[after] = before
                best = Schedule(made, timeline.cycles, sorting, order, places, *made_with)
        self.best = best


def emitted(constants, config, cores, order, tell=None):
    """Returns the instructions of an :class:`Order`, the image of their weights, and the description of their jobs."""
    lowered = constants.lowered
    emitter = MatrixEmitter(config, constants, cores)
    _prepare_exchanges(lowered, emitter)
    parts = [part for one in lowered.sums for part in _split(one, emitter.memories)]
    split = chunked(parts, order.starts)
    memories = emitter.memories
    memories.by_samples = order.by_samples or reads_windows(split)
    if order.by_samples:
        memories.enter("samples")
    memories.parts = LAYER_PARTS if memories.by_samples else 1
    memories.most_rows = order.most_rows
    writer, sums = JobWriter(emitter, split), [one for one in split if one.products]
    whole = sum(array_cycles(one, (0, len(one.rows), 0, one.shape.tiles), config) for one in sums)
    for one, job in Pace(split, writer, config).items():
        writer.write(one, job)
        if tell:
            tell(writer.worked / max(1, whole))
    assert not writer.begun, f"{emitter.stage}: jobs are left unfinished"
    return without_dead_stores(emitter.ops, lowered, config), emitter.image, writer.described()


def _prepare_exchanges(lowered, emitter):
    """Divides the memories for the exchange of gradients between cores, and decides which gradients stay on the chip."""
    exchanges = {one.source: one for one in lowered.sums if isinstance(one, ReduceScatter)}
    if not exchanges:
        return
    pairs = [(one, exchanges[one.writes[0]]) for one in lowered.sums if one.results and one.writes[0] in exchanges]
    memories = emitter.memories
    largest = max((one for _, one in pairs), key=lambda one: exchanged_rows(one, memories))
    exchanged, count = exchanged_rows(largest, memories), max(1, memories.sums.size // largest.source.rows)
    operands = [operand_rows(one) for one, _ in pairs]
    memories.enter("exchange", operands=operands, exchanged=exchanged, count=min(count, largest.source.tiles))
    emitter.gatherer = Gatherer(emitter, lowered.gathers)
    memories.gathered = frozenset(one.reader for one in lowered.gathers)
    for one, exchange in pairs:
        exchange.joined = 2 * one.shape.rows <= memories.sums.size and can_join(one, exchange, memories)


def _split(one, memories):
    if not isinstance(one, MatrixSum) or len([*plan_sum(one, memories).jobs(one)]) <= 2:
        return [one]
    return one.split()

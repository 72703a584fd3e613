"""Tiling of sums of matrix products: rows and column tiles of a job, so that its data fits the memories of the core."""

from dataclasses import dataclass, replace
from itertools import product
from math import ceil, lcm

from ..errors import CompileError, too_small
from ..lowering.ring import ReduceScatter
from ..timing.estimates import is_array_busier
from ..tuning import DIVIDED_TILES, EXCHANGE_PARTS, LEAST_ROWS, POOLED_PARTS, SAMPLE_JOBS

__all__ = ["TOGETHER", "SumPlan", "can_join", "exchanged_rows", "operand_rows", "plan_run", "plan_sum"]

TOGETHER = 4  # channels of a product of kind "bands" whose sums are in the accumulators together


@dataclass(frozen=True)
class SumPlan:
    """The jobs of a sum."""

    rows: int  # Rows of a job. The last job may have fewer.
    columns: int  # column tiles of a job
    #: Rows of operands that are loaded at once, for all tiles of inputs together. Fewer than the operands if these do not fit.
    piece: int
    #: Column tiles whose gradient is computed at once, if a job is exchanged between cores. Default: all of a job.
    part: int | None = None
    each: int = 0  # Jobs do not cross multiples of so many rows. 0: they may.

    def jobs(self, one):
        """Yields `(first row, rows, first column tile, column tiles)` of each job of a sum or an exchange."""
        if isinstance(one, ReduceScatter):
            tiles, rows = one.source.tiles, range(one.source.rows)
        else:
            tiles, rows = one.shape.tiles, one.rows
        for first in rows[:: self.each or len(rows)]:
            part = range(first, min(first + (self.each or len(rows)), rows.stop))
            for row, column in product(part[:: self.rows], range(0, tiles, self.columns)):
                yield row, min(self.rows, part.stop - row), column, min(self.columns, tiles - column)


def _unit(sums):
    """Returns the number that divides the rows of each job."""
    geometry = sums.shape.geometry
    if sums.shape.form == "vector":
        return 1
    by_samples = any(one.own for one in sums.products) or sums.start_rows == "samples"
    by_samples |= any(one.has_any_windows for one in sums.results)
    lines = {one.steps[0] for one in sums.results if one.has_own_size}
    lines |= {1 for one in sums.products if one.has_lines}
    unit = lcm(*lines) * geometry.width
    if lanes := next((one.lanes for one in sums.products if one.lanes and not one.window), 0):
        return lanes
    if lines and not by_samples and geometry.period == geometry.positions and geometry.positions % unit == 0:
        return unit
    return geometry.period if by_samples or lines else geometry.unit


def _unit_within(sums):
    """Returns the number that divides the rows of a job if jobs may have a part of a sample, though initial sums or products
    differ from sample to sample. Returns None if they may not."""
    has_lines = any(one.has_lines for one in sums.products) or any(one.has_own_size for one in sums.results)
    turned = any(one.turned for one in sums.products)
    return None if has_lines or turned or sums.shape.form != "samples" else sums.shape.geometry.n


def _image_rows(sums, rows, memories):
    """Returns the largest number of rows of the images that a job of `rows` rows reads. They are loaded again for each line of
    the kernel, or else for each kernel position, if the images of the smallest job do not fit. The vectors of a sample that are
    copied stay on the chip, if they fit half of the operands' rows."""
    found, size, period = 0, memories.operands.size, sums.shape.geometry.period
    for one in (one for one in sums.products if one.window):
        tiles, window, unit = one.source.tiles, one.window, _unit(sums)
        if one.kind == "window" and tiles * window.most_rows(unit, period) > size and not memories.lasting_rows:
            window = window.kernel_line(0) if one.weights.form == "turned" else window
            tiles = tiles if tiles * window.most_rows(unit, period) <= size else 1
        if one.kind == "bands":
            tiles = one.source.geometry.n
        found = max(found, tiles * window.most_rows(rows, period))
    for one in (one for one in sums.products if one.is_whole_copy):
        each = one.source.tiles * one.source.geometry.period
        found = max(found, each * -(-rows // sums.shape.geometry.period) if each <= size // 2 else 0)
    return found


def _resident(memories):
    return memories.operands.size * 3 // 4


def _resident_rows(inputs, rows, memories):
    """Returns the rows of a job, at most `rows`, with which transposed operands of `inputs` tiles stay on the chip for all column
    tiles. Returns `rows` if this needs very short jobs."""
    most = _resident(memories) // inputs // memories.n * memories.n
    return min(rows, most) if most >= (LEAST_ROWS if memories.config.transpose else 2 * memories.n) else rows


def can_join(gradient, exchange, memories):
    """Returns True if the jobs of a gradient can have all rows, so that the cores of a ring exchange each job by itself."""
    rows, needed = gradient.shape.rows, max(operand_rows(gradient), 4 * memories.n)
    fits = needed <= memories.operands.size and exchanged_rows(exchange, memories) <= memories.exchanges.size
    return fits and rows <= memories.sums.size


def operand_rows(gradient):
    """Returns the rows of the transposed operands of a gradient."""
    return gradient.shape.rows * max((one.inputs for one in gradient.products if one.turned and not one.own), default=0)


def exchanged_rows(exchange, memories):
    """Returns the rows of the unified buffer for two exchanges of a column tile of a gradient."""
    return 4 * (max(exchange.source.rows, exchange.padded(memories.cores)) + exchange.made.rows)


def _plan_exchange(run, exchange, memories):
    """Returns the :class:`SumPlan` of a run with the exchange of a gradient. Its updates have the rows of a core's segment."""
    sums, rows, tiles = run[run.index(exchange) + 1 :], exchange.source.rows, exchange.source.tiles
    each = exchanged_rows(exchange, memories)
    if 2 * memories.exchanges.size < each or run[0] is not exchange and not can_join(run[0], exchange, memories):
        raise CompileError(too_small(memories.config, "unified_buffer_depth", 4 * each, exchange.source.name))
    most = min(_most_columns(one, memories) for one in sums)
    if not most:
        raise CompileError(too_small(memories.config, "accumulator_depth", 2 * memories.config.accumulator_depth, sums[0].name))
    columns = min(max(1, memories.exchanges.size // each), tiles, memories.zero_rows, most)
    if run[0] is exchange:
        return SumPlan(rows, columns, 0)
    columns, is_padded = min(columns, memories.sums.size // rows), exchange.padded(memories.cores) > rows
    part = 1 if is_padded else max(1, min(columns, memories.sums.size // (EXCHANGE_PARTS * rows)))
    return SumPlan(rows, columns // part * part, operand_rows(run[0]), part)


def _most_columns(sums, memories):
    """Returns the most column tiles of the jobs of an update that have all rows, with a job in flight for each step. Returns 0 if
    a job cannot have all rows."""
    needs, rows = _Needs(sums, memories), len(sums.rows)
    jobs = sums.steps + (sums.steps > 1)  # with one more, jobs of different sizes do not overlap at the end of the memory
    most = min(sums.shape.tiles, max(1, memories.config.weight_fifo_depth // 2), memories.sums_of(sums).size // (jobs * rows))
    return next((count for count in range(most, 0, -1) if needs.fits(rows, count, 1)), 0)


def plan_run(run, memories):
    """Returns the :class:`SumPlan` of sums that have the same jobs."""
    for one in run:
        if isinstance(one, ReduceScatter):
            return _plan_exchange(run, one, memories)
    rows = min(plan_sum(one, memories).rows for one in run)
    made = [plan_sum(one, memories, rows) for one in run]
    return replace(made[0], columns=min(one.columns for one in made))


class _Needs:
    """The rows of the memories that jobs of a sum need.

    Members
    -------
    parts : int
        A job has one of so many parts of the rows for sums that it could have otherwise.
    least : int
        Fewest column tiles of a job.
    """

    def __init__(self, sums, memories):
        self.sums, self.memories = sums, memories
        self.whole = any(one.softmax for one in sums.results)
        is_banded = any(one.kind == "bands" for one in sums.products)
        self.least = memories.config.n if is_banded else 1
        self.has_lines = any(one.has_lines for one in sums.products)
        is_busier, self.parts = is_array_busier([sums], memories.config), 1.0
        if self.has_lines and not is_banded and is_busier:
            self.parts = memories.parts
        elif any(one.pool for one in sums.results) and not is_busier and not memories.is_step:
            self.parts = POOLED_PARTS
        if self.parts > 1 and not self.fits(_unit(sums), 1, 2):
            self.parts = 1

    def of(self, rows, columns, shares):
        """Yields `(parameter, rows that a job needs, rows there are)`."""
        sums, memories, columns = self.sums, self.memories, max(columns, self.least)
        tiles, whole = sums.shape.tiles, self.whole
        held = rows * (tiles if whole else min(columns, TOGETHER) if self.least > 1 else columns)
        size = min(memories.sums.size, memories.lasting_rows or memories.sums.size)
        biases = (memories.biases if sums.start and sums.start.wide else memories.upper).size
        yield "accumulator_depth", self.parts * held, min(size, shares * memories.sums_of(sums).size)
        most = memories.results.size
        results = max(sum(one.rows(rows, most) for one in phase.results if not one.softmax) for phase in sums.phases)
        halves = max((one.matrix.halves for one in sums.results if one.softmax), default=0)
        yield "unified_buffer_depth", max(self.least * results, halves * held), most
        operands = max((one.held_rows(rows, sums.shape.geometry.period) for one in sums.products), default=rows)
        yield "unified_buffer_depth", 2 * operands, memories.operands.size // 2
        yield "unified_buffer_depth", _image_rows(sums, rows, memories), memories.operands.size
        if sums.start_rows == "one":
            yield "bias_depth", tiles if whole else columns, biases
        if sums.start_rows in ("samples", "rows"):
            loaded = min(rows, sums.shape.geometry.period) if sums.start_rows == "samples" else rows
            yield "bias_depth", max(rows * columns, loaded * tiles if whole else 0), biases

    def fits(self, rows, columns, shares):
        return all(count <= size // shares for _, count, size in self.of(rows, columns, shares))

    def shares(self, unit):
        """Returns the number of jobs that the memories hold at once, 2 if possible, or 0. Returns 1 for a network's sum whose
        only job then has all rows and column tiles, or whose jobs would have fewer than n rows."""
        found = next((shares for shares in ((2, 1) if self.least == 1 else (1,)) if self.fits(unit, 1, shares)), 0)
        if self.memories.is_step or found < 2:
            return found
        rows = len(self.sums.rows)
        is_only = not self.has_lines and self.fits(rows, self.sums.shape.tiles, 1)
        return 1 if is_only or not self.fits(min(rows, self.memories.config.n), 1, 2) else 2

    def lacking(self, unit):
        lacks = [(name, count / size if size > 0 else 2.0) for name, count, size in self.of(unit, 1, 1) if count > size]
        name, times = max(lacks, key=lambda one: one[1], default=("bias_depth", 2.0))
        needed = ceil(times * getattr(self.memories.config, name))
        return CompileError(too_small(self.memories.config, name, needed, self.sums.name))


def plan_sum(sums, memories, most_rows=None):
    """Returns the :class:`SumPlan` of a sum, with jobs of at most `most_rows` rows. Raises CompileError if not even the smallest
    job fits."""
    shape, unit, config, needs = sums.shape, _unit(sums), memories.config, _Needs(sums, memories)
    inputs = max((one.inputs for one in sums.products if one.kind == "matrix"), default=1)
    fits, whole, least = needs.fits, needs.whole, needs.least
    shares, whole_rows, each = needs.shares(unit), len(sums.rows), 0
    if not shares and unit == shape.geometry.period and (part := _unit_within(sums)) and (shares := needs.shares(part)):
        whole_rows = each = unit
        unit = part
    if not shares:
        raise needs.lacking(unit)
    if memories.most_rows and not needs.has_lines:
        most_rows = min(memories.most_rows, most_rows or whole_rows)
    counts = range(-(-(most_rows or whole_rows) // unit), 0, -1)
    rows = next((count * unit for count in counts if fits(count * unit, 1, shares)), unit)
    turned = max((one.inputs for one in sums.products if one.turned and not one.own), default=0)
    if turned and shape.tiles > 1:
        rows = _resident_rows(turned, rows, memories)

    def is_shared():
        """Returns True if jobs of all column tiles share transposed operands."""
        return 0 < turned * rows <= _resident(memories)

    is_kept = not is_shared() and not fits(rows, shape.tiles, shares)  # jobs of other column tiles read the same operands
    while is_kept and inputs * rows > memories.operands.size // 2 and rows >= 2 * max(LEAST_ROWS, unit):
        rows = -(-rows // (2 * unit)) * unit
    period = shape.geometry.period
    if memories.phase == "samples" and period > 1:
        rows = min(rows, -(-LEAST_ROWS // period) * period)
    by_samples = memories.by_samples and period > 1 and unit == 1
    if by_samples or any(one.has_own_size for one in sums.results) or needs.has_lines:
        if any(one.lanes and not one.window and one.source.geometry.period * one.lanes != period for one in sums.products):
            rows = min(rows, period)  # positions of several samples do not follow each other
        if rows >= period:
            unit, rows = period, rows // period * period
        else:  # jobs of one sample each
            whole_rows = each = period
    rows = -(-whole_rows // (-(-whole_rows // rows) * unit)) * unit
    most = shape.tiles if whole else min(shape.tiles, max(1, config.weight_fifo_depth // 2))
    most = most if whole or sums.start else min(most, memories.zero_rows)
    gathers = sums.rows.start == 0 and sums.name in memories.gathered
    shares = SAMPLE_JOBS if memories.phase == "samples" else 1 if gathers else shares  # outputs read a gathered tile soon
    columns = shape.tiles if whole else max(count for count in range(1, most + 1) if count == 1 or fits(rows, count, shares))
    if sums.span and not whole and shape.tiles >= DIVIDED_TILES and not gathers:
        columns = min(columns, -(-shape.tiles // DIVIDED_TILES))  # jobs of another chunk are between the two
    if is_shared():
        columns = min(columns, -(-LEAST_ROWS // rows))
    columns = least if least > 1 else -(-shape.tiles // -(-shape.tiles // columns))
    return SumPlan(rows, columns, turned * rows if is_shared() else memories.operands.size // 3, each=each)

"""Tiling of a stage to fit the buffers: rectangles of results, column tiles, and blocks of the sum.

All ranges are half open.
"""

from dataclasses import dataclass, replace
from math import gcd, prod

from ...ir.graph import span
from ..memory.areas import Area, Rectangle
from ..memory.batching import reads
from ..memory.bias_image import most_sums
from ..memory.layout import PLANES
from ..program import too_small
from ..timing.model import turnaround
from .weight_passes import count_passes, tile_steps

__all__ = [
    "StagePlan",
    "Job",
    "NothingFits",
    "reads_transposed",
    "can_alternate",
    "blocks_of",
    "even_groups",
    "group_cycles",
    "plan_stage",
]


_PLACES = 4  # sets of accumulator rows for such a group
_TRANSPOSED = 8  # column tiles whose passes alternate with positions in the lanes, to save instructions


class NothingFits(Exception):
    """The smallest tile of a stage does not fit. `name` is the configuration parameter that is too small, `needed` the value
    needed."""

    def __init__(self, name, needed, stage):
        super().__init__(name, needed, stage)
        self.name, self.needed, self.stage = name, needed, stage

    def reason(self, config):
        """Returns a message of one line: the limit of this configuration, and the option that raises it."""
        return too_small(config, self.name, self.needed, f"stage {self.stage}")


def _ranges(total, step):
    """Returns `(first, end)` of consecutive ranges of length `step` that cover `total`. The last range may be shorter."""
    return [(first, min(total, first + step)) for first in range(0, total, step)]


def _first_of_each_size(ranges):
    """Returns the first of the `(range of results, range of sums)` of each size."""
    sizes = {}
    for one in ranges:
        sizes.setdefault(tuple(end - first for first, end in one), one)
    return list(sizes.values())


def _sums_of(stage, axis, first, end):
    if not stage.pool:
        return first, end
    pool = stage.pool
    low = first * pool.stride[axis] - pool.padding[axis]
    high = (end - 1) * pool.stride[axis] - pool.padding[axis] + (pool.window[axis] - 1) * pool.dilation[axis] + 1
    return max(0, low), min(stage.sums_size[axis], high)


@dataclass(frozen=True)
class StagePlan:
    """The tiling of a stage.

    Parameters
    ----------
    samples, rows, columns : int
        Size of the rectangle of results that a job computes.
    groups : tuple of int
        Sizes of the groups of column tiles. The passes within a group alternate.
    blocks : tuple of tuple
        Blocks of the sum. A block is a tuple of pieces `(term, first ky, end ky, first tile, end tile)` whose operands are loaded
        together. There is one block if all operands fit.
    staging, slots : int
        Vectors of a job's result in the unified buffer, and the number of such staging areas.
    operands : int
        Vectors of the operands of the largest block.
    sums : int
        Accumulator rows of one group of column tiles.
    tiles : tuple of (int, int)
        Ranges of column tiles that are computed by separate jobs, if each column tile reads its own channel tile; else empty.
    """

    samples: int
    rows: int
    columns: int
    groups: tuple
    blocks: tuple
    staging: int
    slots: int
    operands: int = 0
    sums: int = 0
    tiles: tuple = ()

    def rectangles(self, stage, batched):
        """Returns the jobs of a stage, in order, as a list of :class:`.Rectangle`. With samples along x, each job computes one
        chunk."""
        if stage.output in batched.along_x:
            ranges = _ranges(batched.batch, batched.rows)
            return [
                Rectangle((chunk, chunk + 1), (0, 1), (0, end - first), (0, 1), (0, end - first), (first, end))
                for chunk, (first, end) in enumerate(ranges)
            ]
        return self._product(*self._sides(stage, batched))

    def of_different_sizes(self, stage, batched):
        """Returns `(rectangles, jobs)`: the first job of each size, and the number of jobs. The vectors that a job needs depend
        only on its size, unless several terms read a tensor with different strides: then all jobs are returned."""
        strides = {(term.source, term.stride) for term in stage.terms}
        if stage.output in batched.along_x or len(strides) > len({source for source, _ in strides}):
            rectangles = self.rectangles(stage, batched)
            return rectangles, len(rectangles)
        sides = self._sides(stage, batched)
        return self._product(*map(_first_of_each_size, sides)), prod(map(len, sides)) * len(self.tiles or (None,))

    def _sides(self, stage, batched):
        """Returns the ranges of the jobs along the samples, down and across, each as `(range of results, range of sums)`."""
        height, width = stage.result_size
        down = [(rows, _sums_of(stage, 0, *rows)) for rows in _ranges(height, self.rows)]
        across = [(columns, _sums_of(stage, 1, *columns)) for columns in _ranges(width, self.columns)]
        return [(samples, samples) for samples in _ranges(batched.batch, self.samples)], down, across

    def _product(self, samples, down, across):
        return [
            Rectangle(some, rows, columns, sum_rows, sum_columns, tiles=tiles)
            for some, _ in samples
            for rows, sum_rows in down
            for columns, sum_columns in across
            for tiles in self.tiles or (None,)
        ]

    def areas(self, stage, rectangle, block, layouts):
        """Returns `{source: Area}`: the areas of operands that a block needs for a rectangle of results."""
        areas = {}
        whole = self.columns == stage.result_size[1]
        for index, ky, end_ky, tile, end_tile in block:
            term = stage.terms[index]
            layout = layouts[term.source]
            y = rectangle.sum_rows[0] * term.stride[0] + ky * term.dilation[0] - term.padding[0]
            end_y = (rectangle.sum_rows[1] - 1) * term.stride[0] + (end_ky - 1) * term.dilation[0] - term.padding[0] + 1
            columns = None
            if not whole:
                x = rectangle.sum_columns[0] * term.stride[1] - term.padding[1]
                columns = x, x + span(rectangle.sums[2], term.stride[1], term.kernel[1], term.dilation[1])
            left = max(0, term.padding[1])
            tiles = rectangle.tiles or (tile, end_tile)
            area = Area(layout, rectangle.samples_of(layout), (y, end_y), tiles, columns, left)
            areas[term.source] = area.joined(areas.get(term.source, area))
        return areas

    def result(self, stage, rectangle, layouts):
        """Returns the area of the output that a job writes."""
        if stage.reflow:
            layout, width = layouts[stage.output], stage.result_size[1]
            first, end = (row * width for row in rectangle.rows)
            rows = first // layout.tensor.width, min(layout.tensor.height, -(-end // layout.tensor.width))
            return Area(layout, rectangle.samples, rows, (0, layout.tiles), None, 0)
        layout = layouts[stage.output]
        rows, columns = (
            (start + first, start + end) for start, (first, end) in zip(stage.origin, (rectangle.rows, rectangle.columns))
        )
        whole = layout.along_x or rectangle.columns[1] - rectangle.columns[0] == layout.tensor.width
        return Area(layout, rectangle.samples, rows, rectangle.tiles or (0, layout.tiles), None if whole else columns, 0)

    def beside(self, stage, rectangle, layouts):
        """Returns the area of the tensor `times`, which has the shape of the results."""
        layout = layouts[stage.times]
        columns = None if self.columns == stage.result_size[1] else rectangle.columns
        return Area(layout, rectangle.samples, rectangle.rows, (0, layout.tiles), columns, 0)


def reads_transposed(stage, layouts):
    """Returns True if a stage reads a transposed tensor with positions in the lanes. Each column tile then reads its own channel
    tile."""
    source = layouts[stage.terms[0].source].tensor
    return source.view is not None and source.width == 1


def blocks_of(stage, layouts):
    """Yields ways to split a sum into blocks: one block, by rows of the kernel, by terms, and by channel tiles if this keeps the
    order of additions."""
    whole = [(index, 0, term.kernel[0], 0, layouts[term.source].tiles) for index, term in enumerate(stage.terms)]
    yield (tuple(whole),)
    highest = max(term.kernel[0] for term in stage.terms)
    for count in range(2, highest + 1):
        step = -(-highest // count)
        if count > 2 and step == -(-highest // (count - 1)):
            continue
        yield tuple(
            ((index, ky, min(ky + step, end), 0, tiles),) for index, _, end, _, tiles in whole for ky in range(0, end, step)
        )
    if len(whole) > 1 and highest == 1:
        yield tuple((piece,) for piece in whole)
    widest, parts = max(layouts[term.source].tiles for term in stage.terms), 2
    while parts < 2 * widest and not reads_transposed(stage, layouts):
        step, pieces = -(-widest // min(parts, widest)), []
        for index, _, end, _, tiles in whole:
            own = step if stage.terms[index].kernel[1] == 1 else tiles  # tiles are the inner loop of the sum
            pieces += [((index, ky, ky + 1, tile, min(tile + own, tiles)),) for ky in range(end) for tile in range(0, tiles, own)]
        yield tuple(pieces)
        parts *= 2


def even_groups(columns, together):
    """Divides `columns` column tiles into groups of `together`; the last group may be smaller. Returns the sizes."""
    return (together,) * (columns // together) + (columns % together,) * bool(columns % together)


def _sizes(total):
    """Returns the sizes of parts when `total` is divided into 1, 2, 3 ... equal parts, rounded up. The sizes are in decreasing
    order, without duplicates."""
    return sorted({-(-total // count) for count in range(1, total + 1)}, reverse=True)


def plan_stage(batched, number, config, layouts, space, depth, homes=frozenset()):
    """Returns the cheapest tiling of a stage whose samples are not along x.

    Parameters
    ----------
    layouts : dict of str to Layout
    space : int
        Vectors of the unified buffer available to the stage.
    depth : int
        Accumulator rows available to the stage.
    homes : collection of str
        Names of resident tensors. Each job then has one sample, as each sample has its own address.

    Raises
    ------
    NothingFits
    """
    found, needed, stage = [], ("", 0), batched.stages[number]
    at_home = not homes.isdisjoint({*reads(stage), stage.output})
    for samples, rows, columns, *tiles in _shapes(stage, 1 if at_home else batched.batch, layouts):
        job = Job(batched, number, layouts, StagePlan(samples, rows, columns, (), (), 0, 1, tiles=tuple(tiles)), homes)
        staged = job.made * job.width
        if job.held > depth:
            needed = "accumulator_depth", job.held
            continue
        if stage.has_bias_rows and job.sums > most_sums(batched.stages, config.n, config.bias_depth):
            needed = "bias_depth", 2 * job.sums
            continue
        if found and _cost(job, config, _together(job, config, depth))[0] >= min(cost for cost, _ in found):
            continue
        for blocks in blocks_of(stage, layouts):
            size = job.operands(blocks)
            slots = max((count for count in (3, 2, 1) if count * staged + 2 * size <= space), default=0)
            if not slots and staged + size > space:
                needed = "unified_buffer_depth", staged + size
                continue
            found.append(_plan(job, config, blocks, size, slots, depth))
            if slots:
                break
    if not found:
        raise NothingFits(*needed, stage.name)
    return min(found, key=lambda entry: entry[0])[1]


def _follow(term, stage, layout):
    """Returns True if the term's operands for a sample end where the operands for the next sample begin. One loop over rows then
    covers several samples."""
    contiguous = layout.sample == layout.tensor.height * layout.row and not layout.tensor.view
    whole = contiguous and layout.tensor.height == stage.sums_size[0]
    return whole and term.kernel[0] == term.stride[0] == 1 and term.padding == (0, 0)


def _shapes(stage, batch, layouts):
    """Returns the candidates for the size of a job: (samples, rows, columns), and (first, end) of the column tiles if these are
    split. A job has several samples only if one loop over rows covers them at no cost."""
    height, width = stage.result_size
    free = min(stage.sums_size) == 1 or all(_follow(term, stage, layouts[term.source]) for term in stage.terms)
    layout, transposed = layouts[stage.output], any(layouts[term.source].tensor.view for term in stage.terms)
    several = free and not (stage.pool or stage.has_bias_rows) and (transposed or layout.order != PLANES)
    several = several and not any(term.data for term in stage.terms)
    step = layout.tensor.width // gcd(layout.tensor.width, width) if stage.reflow else 1
    rows = [
        *((samples, height, width) for samples in (_sizes(batch) if several else ())),
        *((1, rows, width) for rows in _sizes(height) if rows == height or rows % step == 0),
    ]
    if reads_transposed(stage, layouts):
        n = layout.n
        parts = [_ranges(layout.tiles, n * size) for size in _sizes(layout.tiles // n)[1:] if layout.tiles // n % size == 0]
        return [*rows, *((*shape, *part) for shape in rows for part in parts)]
    # Transposed operands are read by whole tiles.
    return rows if transposed or stage.reflow else [*rows, *((1, 1, columns) for columns in _sizes(width)[1:])]


class Job:
    """The memory needs of a stage's jobs of one size.

    Parameters
    ----------
    trial : StagePlan
        Gives the size of the jobs.
    homes : collection of str
        Names of resident tensors.

    Members
    -------
    rectangles : list of Rectangle
        The first rectangle of each size. Rectangles at the edges may be smaller.
    count : int
        Number of rectangles for the samples of one job.
    sums, held : int
        Accumulator rows per column tile of the largest rectangle, and the accumulator rows that must be allocated at once.
    width : int
        Vectors per position of the result.
    made : int
        Positions of all results of the largest rectangle that are stored to host memory. 0 if the output is resident.
    """

    def __init__(self, batched, number, layouts, trial, homes=()):
        self.batched, self.stage, self.layouts, self.trial, self.homes = batched, batched.stages[number], layouts, trial, homes
        samples = batched.rows if batched.is_along_x(number) else trial.samples
        few = replace(batched, batch=min(batched.batch, samples))
        self.rectangles, self.count = trial.of_different_sizes(self.stage, few)
        self.largest = max(self.rectangles, key=lambda one: one.volume)
        self.sums = self.largest.volume
        self.tiles = trial.tiles[0][1] if trial.tiles else layouts[self.stage.output].tiles
        self.held = self.sums * (self.tiles if self.stage.softmax else 1)
        self.width = batched.vectors(self.stage.output)
        stays = not batched.is_along_x(number) and self.stage.output in homes
        self.made = 0 if stays else trial.result(self.stage, self.largest, layouts).size

    def sizes(self, blocks, rectangle):
        """Returns the operand vectors of each block for a rectangle. The last block includes the operand tensor that has the
        shape of the results."""
        sizes = [
            sum(
                area.size
                for source, area in self.trial.areas(self.stage, rectangle, block, self.layouts).items()
                if source not in self.homes
            )
            for block in blocks
        ]
        if self.stage.times and self.stage.times not in self.homes:
            sizes[-1] += self.trial.beside(self.stage, rectangle, self.layouts).size
        return sizes

    def operands(self, blocks):
        """Returns the operand vectors of the largest block, for any rectangle."""
        return max(max(self.sizes(blocks, rectangle)) for rectangle in self.rectangles)


def group_cycles(config, count, rows):
    """Returns the cycles of one pass of each of `count` column tiles over `rows` rows. A pass waits for the previous pass over
    the same sums, so the result is at least the accumulators' latency."""
    return max(count * max(rows, config.n), turnaround(config))


def can_alternate(stage, blocks, layouts):
    """Returns True if the passes of several column tiles can alternate: these read the same channel tiles in every block, or
    their operands are all in memory, at equal distances."""
    if stage.is_uniform:
        return True
    whole = all(piece[3:] == (0, layouts[stage.terms[piece[0]].source].tiles) for block in blocks for piece in block)
    split = any("tile" in layouts[term.source].splits for term in stage.terms)
    return whole and not split and tile_steps(stage, layouts[stage.output].n) is not None


def _together(job, config, depth, blocks=()):
    """Returns the number of column tiles whose passes alternate: enough to hide the latency of the accumulators, if there is
    memory."""
    if reads_transposed(job.stage, job.layouts) and config.pooling:
        return max(1, min(job.tiles, _TRANSPOSED, config.accumulator_depth // _PLACES // job.sums, config.bias_depth // 2))
    if job.stage.softmax or not can_alternate(job.stage, blocks, job.layouts):
        return 1
    wanted = -(-turnaround(config) // job.sums)
    if job.stage.has_bias_rows:
        biases = most_sums(job.batched.stages, config.n, config.bias_depth) // job.sums
    else:
        biases = config.bias_depth // 2
    return max(1, min(job.tiles, wanted, depth // 2 // job.sums, biases))


def _cost(job, config, together, blocks=1, operands=0):
    """Returns `(approximate cycles, the smaller of array and bus cycles, number of jobs)`. `together` column tiles alternate. A
    job loads `operands` vectors in `blocks` blocks."""
    passes, again = count_passes(job.stage, config.n), 1 if blocks == 1 else -(-job.tiles // together)
    passes /= len(job.trial.tiles) or 1
    jobs = -(-job.batched.batch // job.trial.samples) * job.count
    compute = jobs * passes / together * group_cycles(config, together, job.sums)
    bus = jobs * (passes * config.n + job.made * job.width + again * operands) * config.beats_per_vector
    return max(compute, bus) + jobs * 30 * (1 + blocks * again), min(compute, bus), jobs


def _groups(job, n, together):
    """Returns the sizes of the groups of column tiles of a job. With positions in the lanes, no group crosses a multiple of n
    column tiles."""
    if reads_transposed(job.stage, job.layouts):
        return even_groups(n, together) * (job.tiles // n)
    return even_groups(job.tiles, together)


def _plan(job, config, blocks, operands, slots, depth):
    """Returns `(approximate cycles, StagePlan)`. `operands` is the size of the largest of the `blocks`, `slots` the number of
    staging areas for results. If `slots` is 0, there is no memory for overlap: array and bus cycles add up."""
    together = _together(job, config, depth, blocks)
    cost, less, jobs = _cost(job, config, together, len(blocks), sum(job.sizes(blocks, job.largest)))
    if not slots or job.held * together > depth // 2 and jobs > 1:
        cost += less
    if slots == 1 and reads_transposed(job.stage, job.layouts):
        cost += jobs * job.made * config.beats_per_vector  # the next results wait until these are stored
    return cost, replace(
        job.trial,
        groups=_groups(job, config.n, together),
        blocks=blocks,
        staging=job.made * job.width,
        slots=slots or 1,
        operands=operands,
        sums=job.held * together,
    )

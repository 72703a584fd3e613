"""How a stage is cut into pieces that fit the buffers: result rectangles, column tiles, blocks of the sum.

All ranges are half open. A *pass* is one tile of weights: (term, ky, kx, tile of the source's channels).
"""

from dataclasses import dataclass

import numpy as np

from ..ir.graph import span
from .memory_map import tiles_of
from .timing import turnaround

__all__ = ["Area", "StagePlan", "Rectangle", "passes_of", "plan_stage", "NothingFits", "runs_of_windows"]


class NothingFits(Exception):
    """Not even the smallest tile of a stage fits; `name` is the parameter of the configuration that is too small."""

    def __init__(self, name, needed):
        super().__init__(name, needed)
        self.name, self.needed = name, needed


@dataclass(frozen=True)
class Rectangle:
    """What a job makes: samples, rows and columns of the result, and the sums that they take."""

    samples: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    sum_rows: tuple[int, int]
    sum_columns: tuple[int, int]

    @property
    def sums(self):
        """(samples, rows, columns) of the sums."""
        return tuple(end - first for first, end in (self.samples, self.sum_rows, self.sum_columns))


@dataclass(frozen=True)
class Area:
    """A part of a tensor in the unified buffer: rows y, tiles of channels, and columns x if not all of them.

    As `[sample][y][tile][x]`, with `left` margin columns in front of each sample (or each row, if not all tiles are there).
    """

    layout: object
    samples: tuple[int, int]
    rows: tuple[int, int]
    tiles: tuple[int, int]
    columns: tuple[int, int] | None
    left: int

    @property
    def pitch(self):
        return self.layout.pitch if self.columns is None else self.columns[1] - self.columns[0]

    @property
    def _stretched(self):
        """Whether a sample's rows are one stretch of host memory."""
        return self.columns is None and self.tiles == (0, self.layout.tiles)

    @property
    def row(self):
        own = (self.tiles[1] - self.tiles[0]) * self.pitch
        return own if self._stretched or self.columns is not None else self.left + own

    @property
    def sample(self):
        return (self.left if self._stretched else 0) + (self.rows[1] - self.rows[0]) * self.row

    @property
    def size(self):
        return (self.samples[1] - self.samples[0]) * self.sample

    def place(self, sample, y, tile, x):
        """Position within the area."""
        first = -self.left if self.columns is None else self.columns[0]
        return ((sample - self.samples[0]) * self.sample + (y - self.rows[0]) * self.row
                + (tile - self.tiles[0]) * self.pitch + x - first)

    def transfers(self):
        """`(host position, position in the area, count)` that bring it here, as few as there can be."""
        layout, tile = self.layout, self.tiles[0]
        found = []
        for sample in range(*self.samples):
            if self._stretched:
                found.append((layout.position(sample, self.rows[0]) - self.left, self.sample))
                continue
            for y in range(*self.rows):
                if self.columns is None:
                    found.append((layout.position(sample, y, tile) - self.left, self.row))
                    continue
                found += [(layout.position(sample, y, tile, self.columns[0]), self.pitch) for tile in range(*self.tiles)]
        merged, place = [], 0
        for host, count in found:
            if merged and merged[-1][0] + merged[-1][2] == host:
                merged[-1][2] += count
            else:
                merged.append([host, place, count])
            place += count
        return merged


def passes_of(stage, n, column, layouts):
    """The passes that make a column tile, in order; those that groups leave without weights are left out."""
    passes = []
    for index, term in enumerate(stage.terms):
        inputs, outputs = term.weights.shape[2], stage.channels // term.groups
        first = column * n // outputs
        last = (min((column + 1) * n, stage.channels) - 1) // outputs
        tiles = range(first * inputs // n, tiles_of((last + 1) * inputs, n))
        passes += [(index, ky, kx, tile) for ky in range(term.kernel[0]) for kx in range(term.kernel[1]) for tile in tiles]
    return passes


def runs_of_windows(stage, axis, first, end):
    """`(first result, results, first window position, positions)` along an axis: results whose windows are cut alike."""
    pool = stage.pool
    runs = []
    for index in range(first, end):
        start = index * pool.stride[axis] - pool.padding[axis]
        inside = [w for w in range(pool.window[axis]) if 0 <= start + w * pool.dilation[axis] < stage.sums_size[axis]]
        cut = inside[0], len(inside)
        if runs and tuple(runs[-1][2:]) == cut:
            runs[-1][1] += 1
        else:
            runs.append([index, 1, *cut])
    return runs


def _sums_of(stage, axis, first, end):
    if not stage.pool:
        return first, end
    pool = stage.pool
    low = first * pool.stride[axis] - pool.padding[axis]
    high = (end - 1) * pool.stride[axis] - pool.padding[axis] + (pool.window[axis] - 1) * pool.dilation[axis] + 1
    return max(0, low), min(stage.sums_size[axis], high)


@dataclass(frozen=True)
class StagePlan:
    """The free choices of a stage.

    Parameters
    ----------
    samples, rows, columns : int
        Size of a job's rectangle of results.
    together : int
        Column tiles whose passes alternate.
    blocks : tuple of tuple
        Pieces `(term, first ky, end ky, first tile, end tile)` that are brought together; all in one, if they fit.
    staging, slots : int
        Positions of a job's result in the unified buffer, and how many such places there are.
    """

    samples: int
    rows: int
    columns: int
    together: int
    blocks: tuple
    staging: int
    slots: int

    def rectangles(self, stage, batch):
        """The jobs, in order."""
        height, width = stage.result_size
        for sample in range(0, batch, self.samples):
            for y in range(0, height, self.rows):
                for x in range(0, width, self.columns):
                    rows, columns = (y, min(height, y + self.rows)), (x, min(width, x + self.columns))
                    yield Rectangle((sample, min(batch, sample + self.samples)), rows, columns,
                                    _sums_of(stage, 0, *rows), _sums_of(stage, 1, *columns))

    def areas(self, stage, rectangle, block, layouts):
        """{source: Area} that the pieces of a block need for a rectangle."""
        areas = {}
        whole = rectangle.columns == (0, stage.result_size[1])
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
            rows, tiles = (y, end_y), (tile, end_tile)
            if term.source in areas:
                other = areas[term.source]
                rows = min(y, other.rows[0]), max(end_y, other.rows[1])
                tiles = min(tile, other.tiles[0]), max(end_tile, other.tiles[1])
                columns = columns and (min(columns[0], other.columns[0]), max(columns[1], other.columns[1]))
                left = max(left, other.left)
            areas[term.source] = Area(layout, rectangle.samples, rows, tiles, columns, left)
        return areas


def _blocks(stage, layouts):
    """Ways to cut the sum: whole, by rows of the kernel, by tiles of channels where that keeps the order."""
    whole = [(index, 0, term.kernel[0], 0, layouts[term.source].tiles) for index, term in enumerate(stage.terms)]
    yield (tuple(whole),)
    highest = max(term.kernel[0] for term in stage.terms)
    for count in range(2, highest + 1):
        step = -(-highest // count)
        if count > 2 and step == -(-highest // (count - 1)):
            continue
        yield tuple(((index, ky, min(ky + step, end), 0, tiles),)
                    for index, _, end, _, tiles in whole for ky in range(0, end, step))
    if len(whole) > 1 and highest == 1:
        yield tuple((piece,) for piece in whole)
    widest, parts = max(layouts[term.source].tiles for term in stage.terms), 2
    while parts < 2 * widest:
        step, pieces = -(-widest // min(parts, widest)), []
        for index, _, end, _, tiles in whole:
            own = step if stage.terms[index].kernel[1] == 1 else tiles      # tiles are the inner loop of the sum
            pieces += [((index, ky, ky + 1, tile, min(tile + own, tiles)),)
                       for ky in range(end) for tile in range(0, tiles, own)]
        yield tuple(pieces)
        parts *= 2


def _sizes(total):
    """Equal parts of a length, the longest first."""
    return sorted({-(-total // count) for count in range(1, total + 1)}, reverse=True)


def plan_stage(stage, config, batch, layouts, space, wide):
    """The cheapest way to cut a stage, for `space` vectors of the unified buffer.

    Parameters
    ----------
    layouts : dict of str to Layout
    wide : bool
        Whether results are binary32.

    Raises
    ------
    NothingFits
    """
    n, depth = config.n, config.accumulator_depth
    output = layouts[stage.output]
    height, width = stage.result_size
    columns_of_tiles = tiles_of(stage.channels, n)
    grouped = any(term.groups > 1 for term in stage.terms)
    passes = [len(passes_of(stage, n, column, layouts)) for column in range(columns_of_tiles)]
    settle = turnaround(config)
    best = needed = None
    # Samples share a pass where one loop over rows is free for them.
    several = min(stage.sums_size) == 1 and not stage.pool
    shapes = [(samples, height, width) for samples in (_sizes(batch) if several else ())]
    shapes += [(1, rows, width) for rows in _sizes(height)] + [(1, 1, columns) for columns in _sizes(width)[1:]]
    for samples, rows, columns in shapes:
        trial = StagePlan(samples, rows, columns, 1, (), 0, 1)
        rectangles = list(trial.rectangles(stage, min(batch, samples)))
        largest = max(rectangles, key=lambda r: np.prod(r.sums))
        sums = int(np.prod(largest.sums))
        held = sums * (columns_of_tiles if stage.softmax else 1)
        if held > depth:
            needed = "accumulator_depth", held
            continue
        together = 1
        if not grouped and not stage.softmax:
            wanted = -(-settle // sums)
            together = max(1, min(columns_of_tiles, wanted, depth // 2 // sums, config.bias_depth // 2))
        staged = samples * rows * output.tiles * (output.pitch if columns == width else columns) * (2 if wide else 1)
        for blocks in _blocks(stage, layouts):
            size = max(sum(area.size for area in trial.areas(stage, rectangle, block, layouts).values())
                       for rectangle in rectangles for block in blocks)
            extra = staged if stage.times else 0
            slots = max((count for count in (3, 2, 1) if count * staged + 2 * (size + extra) <= space), default=0)
            tight = not slots
            if tight and staged + size + extra > space:
                needed = "unified_buffer_depth", staged + size + extra
                continue
            jobs = -(-batch // samples) * len(rectangles)
            again = 1 if len(blocks) == 1 else -(-columns_of_tiles // together)
            pace = max(sums * together, n * together, settle)
            compute = jobs * sum(passes) / together * pace
            bus = jobs * (sum(passes) * n + staged + again * sum(
                sum(area.size for area in trial.areas(stage, largest, block, layouts).values()) for block in blocks))
            cost = max(compute, bus * config.beats_per_vector) + jobs * 30 * (1 + len(blocks) * again)
            if tight or held * together > depth // 2 and jobs > 1:
                cost += min(compute, bus)       # nothing overlaps
            if best is None or cost < best[0]:
                best = cost, StagePlan(samples, rows, columns, together, blocks, staged, slots or 1)
            if not tight:
                break
    if best is None:
        raise NothingFits(*needed)
    return best[1]

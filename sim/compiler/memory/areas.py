"""Rectangular regions of tensors in the unified buffer: the results that a job computes and the operands that it reads. All
ranges are (first, end)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod

from .affine import INDICES, Axis, affine_map
from .layout import Layout

__all__ = ["Rectangle", "Area", "Placed", "whole_area"]


@dataclass(frozen=True)
class Rectangle:
    """The results of a job: ranges of samples, rows and columns, and the ranges of rows and columns of the sums that they need.

    For samples along x, `samples` is the range of one chunk, and `batch` the range of its samples. `tiles` is the range of column
    tiles; None means all.
    """

    samples: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    sum_rows: tuple[int, int]
    sum_columns: tuple[int, int]
    batch: tuple[int, int] | None = None
    tiles: tuple[int, int] | None = None

    @property
    def sums(self):
        """Returns the numbers `(samples, rows, columns)` of the sums."""
        return tuple(end - first for first, end in (self.samples, self.sum_rows, self.sum_columns))

    @property
    def volume(self):
        """Returns the number of sums."""
        return prod(self.sums)

    def samples_of(self, layout):
        """Returns the range along the sample axis of an operand with this layout: chunks if the operand has samples along x, else
        samples."""
        return self.samples if layout.along_x or self.batch is None else self.batch


@dataclass(frozen=True)
class Area:
    """A part of a tensor in the unified buffer: a range of rows y, of channel tiles, and of columns x (None: all columns).

    Positions are stored in the order of the layout. If the area has all columns, `left` margin columns precede each range that is
    contiguous in host memory.
    """

    layout: Layout
    samples: tuple[int, int]
    rows: tuple[int, int]
    tiles: tuple[int, int]
    columns: tuple[int, int] | None
    left: int

    @cached_property
    def _form(self):
        """Returns `(axes, firsts, outside, count)`: the area's axes, from the outermost to the innermost, and the first index of
        each. For all indices of the first `outside` axes, `count` positions are contiguous in host memory: at most all rows y of
        a tile or of all tiles. Rows y are one axis of the area, even if the layout splits them."""
        layout, axes, firsts, step, count = self.layout, [], [], 1, None
        ranges = {"sample": self.samples, "y": self.rows, "tile": self.tiles, "x": self.columns or (0, layout.pitch)}
        for axis in reversed(layout.axes):
            name, (first, end) = axis.name, ranges[axis.name]
            inside = [one.name for one in axes]
            if name == "tile" and name in layout.splits:
                inner_size = layout.axis(name).size
                first, end = (first // inner_size, -(-end // inner_size)) if name in inside else (0, inner_size)
            if name == "y" and name in inside:
                continue
            if count is None and (axis.stride != step or "y" in inside or name == "y" and name in layout.splits):
                count = step = step + self._margin
                inner = len(axes)
            axes.append(Axis(name, end - first, step))
            firsts.append(first)
            step *= end - first
        return axes[::-1], firsts[::-1], len(axes) - inner, count

    @property
    def _margin(self):
        return self.left * self.layout.column if self.columns is None else 0

    @cached_property
    def place(self):
        """Returns the :class:`.AffineMap` from (sample, y, tile, x) to the offset from the start of the area, in positions."""
        axes, firsts, _, _ = self._form
        return affine_map(axes, self._margin - sum(first * axis.stride for axis, first in zip(axes, firsts)))

    def _stride(self, name):
        return next((axis.stride for axis in reversed(self._form[0]) if axis.name == name), 0)

    @property
    def row(self):
        """Returns the distance between two rows y, in positions."""
        return self._stride("y")

    @property
    def plane(self):
        """Returns the distance between two tiles, in positions; if tiles are split, of the inner axis."""
        return self._stride("tile")

    @property
    def column(self):
        """Returns the distance between two columns x, in positions."""
        return self._stride("x")

    @property
    def sample(self):
        """Returns the distance between two samples, in positions."""
        return self._stride("sample")

    @property
    def size(self):
        return (self.samples[1] - self.samples[0]) * self.sample

    def joined(self, other):
        """Returns the smallest area that contains this area and `other`."""

        def hull(one, two):
            return one and two and (min(one[0], two[0]), max(one[1], two[1]))

        return replace(
            self,
            rows=hull(self.rows, other.rows),
            tiles=hull(self.tiles, other.tiles),
            columns=hull(self.columns, other.columns),
            left=max(self.left, other.left),
        )

    def loads(self, cuts=()):
        """Returns the transfers that load the area, as a list of `(first tile, transfers)`: one entry for each part when the
        tiles are split at `cuts`. Only an area with samples along x can be split."""
        edges = [self.tiles[0], *cuts, self.tiles[1]]
        loads = []
        for tiles in zip(edges, edges[1:]):
            part = replace(self, tiles=tiles) if cuts else self
            skip = (tiles[0] - self.tiles[0]) * self.plane
            loads.append((tiles[0], [(host, skip + place, count) for host, place, count in part.transfers()]))
        return loads

    def _contiguous(self):
        """Yields the indices (sample, y, tile, x) of the first vector, after margin columns, of each range that is contiguous in
        host memory."""
        axes, firsts, outside, _ = self._form
        names, together = [axis.name for axis in axes], self.layout.axis("tile").size
        units = [together if name in names[place:] else 1 for place, name in enumerate(names, 1)]
        for indices in product(*(range(first, first + axis.size) for axis, first in zip(axes[:outside], firsts))):
            at = dict.fromkeys(INDICES, 0)
            for name, unit, index in zip(names, units, (*indices, *firsts[outside:])):
                at[name] += unit * index
            yield tuple(at.values())

    def transfers(self, across_samples=False):
        """Returns the transfers between host memory and the area as `(host position, position in the area, count)`. Contiguous
        transfers are merged; those of different samples only if `across_samples` is True."""
        (*_, count), position, merged, place = self._form, self.layout.position, [], 0
        for indices in self._contiguous():
            host = position(*indices) - self._margin
            if merged and merged[-1][0] + merged[-1][2] == host and (across_samples or place % self.sample):
                merged[-1][2] += count
            else:
                merged.append([host, place, count])
            place += count
        return merged

    def inner_transfers(self):
        """Returns the transfers without the margin rows above and below the tensor."""
        rows = max(0, self.rows[0]), min(self.layout.tensor.height, self.rows[1])
        if rows[0] >= rows[1]:
            return []
        inner = replace(self, rows=rows)
        (*_, count), left = inner._form, self._margin
        return [(self.layout.position(*at) - left, self.place(*at) - left, count) for at in inner._contiguous()]

    def margins(self):
        """Returns the zeros around the values of an area of one whole sample, as a list of (place, count)."""
        (sample, _), layout, groups = self.samples, self.layout, self.layout.groups
        size = self.size // len(groups)
        above = [(size * index, self.place(sample, 0, tile, 0)) for index, tile in enumerate(groups)]
        ends = [(self.place(*at), self.place(*at) + count) for at, count in layout.ends(sample)]
        below = [(self.place(sample, layout.tensor.height, tile, 0), size * index) for index, tile in enumerate(groups, 1)]
        return [(first, end - first) for first, end in (*above, *ends, *below) if first < end]


def whole_area(layout, samples):
    """Returns the area of whole samples, which includes the margins before and after each sample."""
    top, left = divmod(layout.lead, layout.row)
    return Area(layout, samples, (-top, layout.tensor.height + layout.below), (0, layout.tiles), None, left // layout.column)


@dataclass
class Placed:
    """An area that has been allocated in the unified buffer, starting at row `place`.

    `size` is the number of vectors per position. `loads` has the transfers that have not been emitted yet, as :meth:`Area.loads`
    returns them.
    """

    area: Area
    place: int
    size: int = 1
    loads: list = field(default_factory=list)

    def at(self, sample, y, tile, x):
        """Returns the buffer row of a position's first vector."""
        return self.place + self.area.place(sample, y, tile, x) * self.size

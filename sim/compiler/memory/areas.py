"""Rectangular regions of tensors in the unified buffer: the results that a job computes and the operands that it reads. All
ranges are (first, end)."""

from dataclasses import dataclass, field, replace

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

    def samples_of(self, layout):
        """Returns the range along the sample axis of an operand with this layout: chunks if the operand has samples along x, else
        samples."""
        return self.samples if layout.along_x or self.batch is None else self.batch


@dataclass(frozen=True)
class Area:
    """A part of a tensor in the unified buffer: a range of rows y, of channel tiles, and of columns x (None: all columns).

    The default order of positions is `[sample][y][tile][x]`. `left` margin columns precede each sample; they precede each row
    instead if the area does not have all tiles. A grouped layout has the order `[sample][n tiles][y][tile]`. A planar layout has
    the order `[sample][tile][y][x]`, with `left` margin columns before each plane.
    """

    layout: Layout
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
        """Returns True if a sample's rows are contiguous in host memory."""
        return self.columns is None and self.tiles == (0, self.layout.tiles)

    @property
    def row(self):
        if self.layout.planar or self.layout.grouped:
            return self.layout.n if self.layout.grouped else self.pitch
        own = (self.tiles[1] - self.tiles[0]) * self.pitch
        return own if self._stretched or self.columns is not None else self.left + own

    @property
    def plane(self):
        """Returns the distance between two tiles of channels, in positions."""
        if self.layout.planar:
            return (self.left if self.columns is None else 0) + (self.rows[1] - self.rows[0]) * self.row
        return self.pitch

    @property
    def sample(self):
        if self.layout.grouped:
            return (self.tiles[1] - self.tiles[0]) * (self.rows[1] - self.rows[0])
        if self.layout.planar:
            return (self.tiles[1] - self.tiles[0]) * self.plane
        return (self.left if self._stretched else 0) + (self.rows[1] - self.rows[0]) * self.row

    @property
    def size(self):
        return (self.samples[1] - self.samples[0]) * self.sample

    def place(self, sample, y, tile, x):
        """Returns the offset of a position from the start of the area, in positions."""
        if self.layout.grouped:
            group, lane = divmod(tile - self.tiles[0], self.layout.n)
            row = group * (self.rows[1] - self.rows[0]) + y - self.rows[0]
            return (sample - self.samples[0]) * self.sample + row * self.layout.n + lane
        first = -self.left if self.columns is None else self.columns[0]
        return (
            (sample - self.samples[0]) * self.sample
            + (y - self.rows[0]) * self.row
            + (tile - self.tiles[0]) * self.plane
            + x
            - first
        )

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
            skip = (tiles[0] - self.tiles[0]) * self.pitch
            loads.append((tiles[0], [(host, skip + place, count) for host, place, count in part.transfers()]))
        return loads

    def transfers(self, across_samples=False):
        """Returns the transfers between host memory and the area as `(host position, position in the area, count)`. Contiguous
        transfers are merged; those of different samples only if `across_samples` is True."""
        layout, tile = self.layout, self.tiles[0]
        found = []
        for sample in range(*self.samples):
            if layout.base:
                tiles = range(*self.tiles, layout.n)
                found += [(layout.position(sample, y, tile), layout.n) for tile in tiles for y in range(*self.rows)]
                continue
            if layout.grouped:
                size = (self.rows[1] - self.rows[0]) * layout.n
                found += [(layout.position(sample, self.rows[0], tile), size) for tile in range(*self.tiles, layout.n)]
                continue
            if layout.planar:
                found += self._planes(sample)
                continue
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
            if merged and merged[-1][0] + merged[-1][2] == host and (across_samples or place % self.sample):
                merged[-1][2] += count
            else:
                merged.append([host, place, count])
            place += count
        return merged

    def inner_transfers(self):
        """Returns the transfers of a grouped area, without the margin rows above and below the tensor."""
        layout, rows = self.layout, (max(0, self.rows[0]), min(self.layout.tensor.height, self.rows[1]))
        return [
            (layout.position(sample, rows[0], tile), self.place(sample, rows[0], tile, 0), (rows[1] - rows[0]) * layout.n)
            for sample in range(*self.samples)
            for tile in range(*self.tiles, layout.n)
        ]

    def _planes(self, sample):
        """Yields `(host position, count)` for each contiguous range of a sample in a planar layout."""
        for tile in range(*self.tiles):
            if self.columns is None:
                yield self.layout.position(sample, self.rows[0], tile) - self.left, self.plane
            else:
                yield from ((self.layout.position(sample, y, tile, self.columns[0]), self.pitch) for y in range(*self.rows))


def whole_area(layout, samples):
    """Returns the area of whole samples, which includes the margins before and after each sample."""
    top, left = divmod(layout.lead, layout.row)
    return Area(layout, samples, (-top, layout.tensor.height + layout.below), (0, layout.tiles), None, left)


@dataclass
class Placed:
    """An area that has been allocated in the unified buffer, starting at row `place`.

    `size` is the number of vectors per position. `loads` has the transfers that have not been emitted yet, as :meth:`Area.loads`
    returns them. `extras` are the areas of the job's additional results.
    """

    area: Area
    place: int
    size: int = 1
    loads: list = field(default_factory=list)
    extras: list = field(default_factory=list)

    def at(self, sample, y, tile, x):
        """Returns the buffer row of a position's first vector."""
        return self.place + self.area.place(sample, y, tile, x) * self.size

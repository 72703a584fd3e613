"""What a job makes and what it reads: rectangles of a result, and areas of its operands with their places in the buffer."""

from dataclasses import dataclass, field, replace

from .layout import Layout

__all__ = ["Rectangle", "Area", "Placed", "whole_area"]


@dataclass(frozen=True)
class Rectangle:
    """What a job makes: samples, rows and columns of the result, and the sums that they take. Of a flat result, `batch` is the
    samples, and `samples` the chunk. `tiles` : column tiles, if not all."""

    samples: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    sum_rows: tuple[int, int]
    sum_columns: tuple[int, int]
    batch: tuple[int, int] | None = None
    tiles: tuple[int, int] | None = None

    @property
    def sums(self):
        """(samples, rows, columns) of the sums."""
        return tuple(end - first for first, end in (self.samples, self.sum_rows, self.sum_columns))

    def samples_of(self, layout):
        """The samples, or the chunk, of an operand of this layout."""
        return self.samples if layout.along_x or self.batch is None else self.batch


@dataclass(frozen=True)
class Area:
    """A part of a tensor in the unified buffer: rows y, tiles of channels, and columns x if not all of them.

    As `[sample][y][tile][x]`, or as `[sample][n tiles][y][tile]` if the layout is grouped, with `left` margin columns in front of
    each sample (or each row, if not all tiles are there). Of a planar layout as `[sample][tile][y][x]`, with those in front of
    each plane.
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
        """Whether a sample's rows are one stretch of host memory."""
        return self.columns is None and self.tiles == (0, self.layout.tiles)

    @property
    def row(self):
        if self.layout.planar or self.layout.grouped:
            return self.layout.n if self.layout.grouped else self.pitch
        own = (self.tiles[1] - self.tiles[0]) * self.pitch
        return own if self._stretched or self.columns is not None else self.left + own

    @property
    def plane(self):
        """Positions from one tile to the next."""
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
        """Position within the area."""
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
        """The smallest area with both."""

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
        """`[(first tile, transfers)]`: those of each part, if its tiles are cut. Only a flat area's can be."""
        edges = [self.tiles[0], *cuts, self.tiles[1]]
        loads = []
        for tiles in zip(edges, edges[1:]):
            part = replace(self, tiles=tiles) if cuts else self
            skip = (tiles[0] - self.tiles[0]) * self.pitch
            loads.append((tiles[0], [(host, skip + place, count) for host, place, count in part.transfers()]))
        return loads

    def transfers(self, across_samples=False):
        """`(host position, position in the area, count)` between host memory and here, as few as there can be."""
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
        """Those of a grouped area without the rows above and below the tensor."""
        layout, rows = self.layout, (max(0, self.rows[0]), min(self.layout.tensor.height, self.rows[1]))
        return [
            (layout.position(sample, rows[0], tile), self.place(sample, rows[0], tile, 0), (rows[1] - rows[0]) * layout.n)
            for sample in range(*self.samples)
            for tile in range(*self.tiles, layout.n)
        ]

    def _planes(self, sample):
        """`(host position, count)` of what lies together, of a planar layout."""
        for tile in range(*self.tiles):
            if self.columns is None:
                yield self.layout.position(sample, self.rows[0], tile) - self.left, self.plane
            else:
                yield from ((self.layout.position(sample, y, tile, self.columns[0]), self.pitch) for y in range(*self.rows))


def whole_area(layout, samples):
    """The area of all that there is of samples, with the margins before and behind each of them."""
    top, left = divmod(layout.lead, layout.row)
    return Area(layout, samples, (-top, layout.tensor.height + layout.below), (0, layout.tiles), None, left)


@dataclass
class Placed:
    """An area in the unified buffer from `place` on.

    `size` : vectors of a position. `loads` : what is still to come, as :meth:`Area.loads` has it. `extras` : what else the job
    makes.
    """

    area: Area
    place: int
    size: int = 1
    loads: list = field(default_factory=list)
    extras: list = field(default_factory=list)

    def at(self, sample, y, tile, x):
        """First vector of a position."""
        return self.place + self.area.place(sample, y, tile, x) * self.size

"""Matrices in host memory: the tensors of a step, as rows of vectors.

A form arranges a tensor as rows and channels. A layout stores them: each index of a number (half, tile, row, lane) is divided
among affine axes, and the address is the sum of the axes' strides. A tile has n channels. A binary32 matrix has two halves, for
upper and lower 16 bits. n consecutive rows of a tile are a weight tile. The rows of all samples are one after the other.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from amaranth_tpu.hw.spec.isa import Region

from ...ir.tiles import tiles_of
from ..host_tensors import halves_of, whole_of

__all__ = ["FORMS", "LAYOUTS", "Axis", "Geometry", "Matrix", "matrix_of", "matrix_values", "stretches", "tensor_values"]

#: Ways to arrange a tensor (height, width, channels) as a matrix.
FORMS = {
    "samples": "a row for each position of each sample",
    "repeated": "a constant of all samples, with a row for each position of each sample",
    "positions": "a row for each position",
    "transposed": "a row for each channel, with the positions of all samples",
    "turned": "weights (kernel positions, inputs, outputs), with a row for each output",
    "column": "a row for each channel, with one number in all lanes",
    "vector": "one row of channels, cut into a row for each n channels",
    "number": "one number, as the diagonal of a tile",
    "diagonal": "a row of channels for each kernel position, as the diagonals of one tile for each n channels",
}

#: Orders of the axes in memory, outermost first. `tile` counts the tiles of a block, or of a set of n tiles; `row` counts the
#: rows of a tile.
LAYOUTS = {
    "planes": "half block tile row lane",
    "numbers": "block tile row lane half",  # binary32 numbers, as RING takes them, with the lower half first
    "sets": "half block set row tile lane",  # the vectors of a row of n tiles follow each other, and are later loaded transposed
}


class Axis(NamedTuple):
    """A part of an index. `of` is `half`, `tile`, `row` or `lane`; `every` is the number of its steps for one step along the
    axis; `stride` is the distance in memory, in units of 16 bits."""

    of: str
    every: int
    stride: int


@dataclass(frozen=True)
class Geometry:
    """The sizes that all matrices of a step share."""

    n: int
    batch: int
    positions: int  # positions of a sample
    period: int  # Rows of a sample. The rows after the positions are padding. They are zeros in host memory.
    width: int = 1  # positions of a line
    unit: int = 1  # the rows of all samples are a multiple of this number: n if gradients read them as weights

    @property
    def rows(self):
        """Rows of all samples."""
        return -(-self.batch * self.period // self.unit) * self.unit

    def is_row(self, rows):
        """Returns an array: True for the rows that are no padding."""
        return (rows % self.period < self.positions) & (rows < self.batch * self.period)


def stretches(*places):
    """Yields `(first of each array, count)` of the stretches in which all arrays of numbers count up by 1."""
    ends = np.flatnonzero(np.any([np.diff(one) != 1 for one in places], axis=0)) + 1
    for first, end in pairwise([0, *ends.tolist(), len(places[0])]):
        if first < end:
            yield *(int(one[first]) for one in places), end - first


@dataclass(frozen=True)
class Matrix:
    """A matrix in host memory."""

    name: str
    form: str  # key of `FORMS`
    #: rows, channels: Rows, including padding, and channels without padding.
    rows: int
    channels: int
    geometry: Geometry
    region: Region
    vector: int  # First vector in its region. For region MODEL: counted from the first constant.
    axes: tuple  # Tuple of Axis. The axes of an index are in order, the innermost last.
    size: int = 0  # number of vectors
    first: int = 0  # address of row 0 of tile 0 in the vectors, in units of 16 bits
    wide: bool = False  # True: binary32
    blocks: int = 1  # Blocks of `channels` channels, one for each kernel position. Each block has whole tiles.
    copies: tuple = ()  # Tuple of sim.compiler.lowering.copies.Copy. Stored with the matrix.

    def copy(self, layout):
        """Returns the matrix of the copy with this layout, or the matrix itself if `layout` is None."""
        return self if layout is None else next(one.matrix for one in self.copies if one.layout == layout)

    @property
    def padded(self):
        """Returns the copy with the same lines and whole tiles of rows for each sample, or the matrix itself. If all readers read
        the copy, the matrix is not stored."""
        found = (one.matrix for one in self.copies if one.layout.is_whole(self.geometry))
        return next(found, self)

    def view(self, name, rows, first):
        """Returns `rows` rows of the matrix, starting at row `first`, as a matrix."""
        return replace(self, name=name, rows=rows, first=self.first + first * self.strides["row"])

    def part(self, name, geometry, origin):
        """Returns the positions of `geometry` in each sample, starting at `origin`, (line, column), as a matrix. A stage writes
        them."""
        each = self.strides["row"]
        rows = (
            Axis("row", geometry.period, self.geometry.period * each),
            Axis("row", geometry.width, self.geometry.width * each),
            Axis("row", 1, each),
        )
        first = self.first + (origin[0] * self.geometry.width + origin[1]) * each
        axes = (*(axis for axis in self.axes if axis.of != "row"), *rows)
        return replace(self, name=name, geometry=geometry, rows=geometry.rows, axes=axes, first=first)

    @property
    def each(self):
        """Number of tiles of a block."""
        return tiles_of(self.channels, self.geometry.n)

    @property
    def tiles(self):
        return self.blocks * self.each

    @property
    def halves(self):
        return 2 if self.wide else 1

    @cached_property
    def strides(self):
        """{index: the stride of its innermost axis}."""
        return {axis.of: axis.stride for axis in self.axes}

    @property
    def stride(self):
        """Vectors from a tile of a plane to the next; 0 if the rows of a tile do not follow each other."""
        return 0 if self.strides["row"] > self.geometry.n else self.strides["tile"] // self.geometry.n

    @property
    def has_numbers(self):
        """Returns True if the halves of a binary32 number follow each other."""
        return self.strides["half"] == -1

    @cached_property
    def _steps(self):
        """The axes as three lists of (every, stride), for tile, row and half."""
        return [[axis[1:] for axis in self.axes if axis.of == index] for index in ("tile", "row", "half")]

    def address(self, tile, row=0, half=0):
        """Returns the address of lane 0 of a tile's row, in units of 16 bits from `vector` on. Indices are integers or arrays."""
        place = self.first
        for axes, index in zip(self._steps, (tile, row, half)):
            for every, stride in axes[:-1]:
                count, index = divmod(index, every)
                place = place + count * stride
            place = place + index * axes[-1][1]
        return place

    def place(self, tile, row=0, half=0):
        """Returns the number, in the region, of the vector of a tile's row. If `has_numbers`, it is the first of two vectors."""
        return self.vector + self.address(tile, row, half) // self.geometry.n

    def lanes(self, tile):
        """Returns the number of channels of a tile."""
        return min(self.geometry.n, self.channels - tile % self.each * self.geometry.n)

    def stored(self, first, count):
        """Yields the ranges `(first row, rows)` without padding, of `count` rows starting at `first`. The vectors of a range are
        consecutive."""
        rows = np.arange(first, first + count)
        if self.form == "samples":
            rows = rows[self.geometry.is_row(rows)]
        places = self.place(0, rows) // (2 if self.has_numbers else 1)
        return ((row, count) for row, _, count in stretches(rows, places))

    # Bytes

    @property
    def _addresses(self):
        """The address of lane 0 of each vector: (halves, rows, tiles)."""
        halves, rows, tiles = np.ogrid[: self.halves, : self.rows, : self.tiles]
        return self.address(tiles, rows, halves)

    def _lanes_of(self, image):
        """Returns the view of an image that has the lanes of a vector at the address of lane 0."""
        each = self.strides["lane"]
        return sliding_window_view(image.reshape(-1), (self.geometry.n - 1) * each + 1, writeable=True)[:, ::each]

    @cached_property
    def vectors(self):
        """The numbers of its vectors in the region: a slice, or an array if other vectors are between."""
        if self.size == self.halves * self.rows * self.tiles:
            return slice(self.vector, self.vector + self.size)
        lanes = np.arange(self.geometry.n) * self.strides["lane"]
        return np.unique((self._addresses[..., None] + lanes) // self.geometry.n) + self.vector

    def _image(self):
        own = self.vectors
        image = np.zeros((self.size, self.geometry.n), np.uint16)
        return image, ... if isinstance(own, slice) else own - self.vector

    def pack(self, values):
        """Returns the bytes of the matrix's vectors with the values of a tensor, (height, width, channels) or, for samples,
        (batch, height, width, channels)."""
        n = self.geometry.n
        rows = matrix_values(self.form, values, self.geometry)
        fill = -0.0 if self.region is Region.MODEL and self.form == "turned" else 0  # structural zeros
        padded = np.full((self.rows, self.blocks, self.each * n), fill, np.float32 if self.wide else rows.dtype)
        parts = rows.reshape(len(rows), self.blocks, -1)
        padded[: len(rows), :, : parts.shape[2]] = parts
        del rows, parts  # each of these arrays is as large as the matrix
        image, own = self._image()
        self._lanes_of(image)[self._addresses] = np.reshape(halves_of(padded), (self.halves, self.rows, self.tiles, n))
        return image[own].tobytes()

    def unpack(self, data, shape):
        """Returns the tensor, float32 if it is wide and else bfloat16, from the bytes of the matrix's vectors. `shape` is
        (height, width, channels)."""
        image, own = self._image()
        image[own] = np.frombuffer(data, "<u2").reshape(-1, self.geometry.n)
        bits = self._lanes_of(image)[self._addresses].reshape(self.halves, self.rows, self.blocks, -1)[..., : self.channels]
        return tensor_values(self.form, whole_of(bits.reshape(self.halves, self.rows, -1)), shape, self.geometry)


def matrix_of(name, form, rows, channels, geometry, region=Region.SCRATCH, layout="planes", pitch=0, **fields):
    """Returns a matrix at vector 0 of its region, with the axes of a layout of `LAYOUTS`. A tile has the space of `pitch` rows.
    Default: `rows`."""
    made = Matrix(name, form, rows, channels, geometry, region, 0, (), **fields)
    n, order, each, first = geometry.n, LAYOUTS[layout].split(), made.each, 0
    sizes = {"half": made.halves, "block": made.blocks, "set": -(-each // n), "tile": each, "lane": n}
    sizes |= {"tile": n} if "set" in order else {}
    sizes["row"] = pitch or rows
    strides = {name: prod(sizes[inner] for inner in order[place + 1 :]) for place, name in enumerate(order)}
    if order[-1] == "half":
        first, strides["half"] = made.halves - 1, -1
    outer = {"block": ("tile", each), "set": ("tile", n)}
    axes = [Axis(*outer[name], strides[name]) for name in outer if name in order]
    axes = [axis for axis in axes if axis.stride != axis.every * strides[axis.of]]  # else one axis has the places of both
    axes += [Axis(name, 1, strides[name]) for name in ("half", "tile", "row", "lane")]
    return replace(made, axes=tuple(axes), size=prod(sizes[name] for name in order) // n, first=first)


def matrix_values(form, values, geometry):
    """Returns the rows of a tensor in a form, (rows, channels). The last rows of padding are left out."""
    (*samples, _, _, channels), n = values.shape, geometry.n
    rows = values.reshape(*samples, -1, channels)
    if form == "repeated":
        rows = np.broadcast_to(rows, (geometry.batch, geometry.positions, channels))
    if rows.ndim == 3:
        padded = np.zeros((len(rows), geometry.period, channels), rows.dtype)
        padded[:, : geometry.positions] = rows
        rows = padded.reshape(-1, channels)
    if form in ("transposed", "turned"):
        return rows.T
    if form in ("vector", "number", "diagonal"):
        rows = np.repeat(rows, n, axis=-1) if form == "number" else rows
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[-1] % n))).reshape(-1, n)
    if form in ("number", "diagonal"):
        rows = np.where(np.eye(n), rows[:, :, None], rows.dtype.type(-0.0)).reshape(-1, n)
    return rows


def tensor_values(form, rows, shape, geometry):
    """Inverts :func:`matrix_values`. `shape` is (height, width, channels)."""
    positions = shape[0] * shape[1]
    if form == "samples":
        rows = rows[: geometry.batch * geometry.period].reshape(geometry.batch, geometry.period, -1)[:, :positions]
        return np.ascontiguousarray(rows).reshape(geometry.batch, *shape)
    assert form in ("turned", "positions", "vector")
    rows = rows[: shape[-1]].T if form == "turned" else rows.reshape(positions, -1)[:, : shape[-1]] if form == "vector" else rows
    return np.ascontiguousarray(rows[:positions]).reshape(shape)

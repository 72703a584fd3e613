"""Matrices in host memory: the tensors of a training step, as rows of vectors.

A matrix is stored in planes `[half][tile][row]` of vectors. A tile has n channels. A binary32 matrix has two halves, for upper
and lower 16 bits. n consecutive rows of a tile are a weight tile. The rows of all samples are one after the other.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...ir.tiles import tiles_of
from ..host_tensors import halves_of, whole_of

__all__ = ["FORMS", "Geometry", "Matrix", "Part", "matrix_values", "stretches", "tensor_values"]

#: Ways to arrange a tensor (height, width, channels) as a matrix.
FORMS = {
    "samples": "a row for each position of each sample",
    "repeated": "a constant of all samples, with a row for each position of each sample",
    "positions": "a row for each position",
    "transposed": "a row for each channel, with the positions of all samples",
    "turned": "weights (kernel positions, inputs, outputs), with a row for each output",
    "vector": "one row of channels, cut into a row for each n channels",
    "number": "one number, as the diagonal of a tile",
    "diagonal": "a row of channels for each kernel position, as the diagonals of one tile for each n channels",
}


@dataclass(frozen=True)
class Geometry:
    """The sizes that all matrices of a step share.

    Parameters
    ----------
    n, batch : int
    positions : int
        Positions of a sample.
    period : int
        Rows of a sample. The rows after the positions are padding. They are zeros in host memory.
    width : int
        Positions of a line.
    unit : int
        The rows of all samples are a multiple of this number: n if gradients read them as weights.
    """

    n: int
    batch: int
    positions: int
    period: int
    width: int = 1
    unit: int = 1

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
    """A matrix in host memory.

    Parameters
    ----------
    name : str
    form : str
        Key of `FORMS`.
    rows, channels : int
        Rows, including padding, and channels without padding.
    geometry : Geometry
    region : Region
    vector : int
        First vector in its region. For region MODEL: counted from the first constant.
    wide : bool
        True: binary32.
    spread : bool
        True: the tensor has one channel, which is stored in all n lanes.
    interleaved : bool
        True: a row of a tile is n binary32 numbers in two vectors, as RING takes them, `[tile][row][channel][half]` with the
        lower half first.
    blocks : int
        Blocks of `channels` channels, one for each kernel position. Each block has whole tiles.
    grouped : bool
        True: n rows of a tile of channels follow each other for all blocks, `[group of n rows][tile of channels][block][row]`.
        Only bfloat16.
    together : int
        Tiles whose vectors of a row follow each other. They are later loaded transposed.
    copies : tuple of sim.compiler.training.copies.Copy
        Stored with the matrix.
    first, pitch : int
        First row in the planes, and rows of a plane's tile. Default of `pitch`: the rows of the matrix.
    """

    name: str
    form: str
    rows: int
    channels: int
    geometry: Geometry
    region: Region
    vector: int
    wide: bool = False
    spread: bool = False
    interleaved: bool = False
    blocks: int = 1
    grouped: bool = False
    together: int = 1
    copies: tuple = ()
    first: int = 0
    pitch: int = 0

    def copy(self, layout):
        """Returns the matrix of the copy with this layout, or the matrix itself if `layout` is None."""
        return self if layout is None else next(one.matrix for one in self.copies if one.layout == layout)

    @property
    def padded(self):
        """Returns the copy with the same lines and whole tiles of rows for each sample, or the matrix itself. If all readers read
        the copy, the matrix is not stored."""
        found = (one.matrix for one in self.copies if one.layout.is_whole(self.geometry))
        return next(found, self)

    @property
    def tiles(self):
        return self.blocks * tiles_of(self.channels, self.geometry.n)

    @property
    def halves(self):
        return 2 if self.wide else 1

    @property
    def size(self):
        """Number of vectors."""
        return self.halves * self.tiles * self.stride

    @property
    def stride(self):
        """Vectors from a tile of a plane to the next."""
        return self.pitch or self.rows

    def place(self, tile, row=0, half=0):
        """Returns the number, in the region, of the vector of a tile's row. Of an interleaved row it is the first vector."""
        if self.grouped:
            each, (group, row) = self.tiles // self.blocks, divmod(row, self.geometry.n)
            block, tile = divmod(tile, each)
            return self.vector + ((group * each + tile) * self.blocks + block) * self.geometry.n + row
        if self.interleaved:
            return self.vector + 2 * (tile * self.rows + row)
        if self.together > 1:
            first, tile = divmod(tile, self.together)
            return self.vector + (first * self.rows + row) * self.together + tile
        return self.vector + (half * self.tiles + tile) * self.stride + self.first + row

    def lanes(self, tile):
        """Returns the number of channels of a tile."""
        return min(self.geometry.n, self.channels - tile % (self.tiles // self.blocks) * self.geometry.n)

    def stored(self, first, count):
        """Yields the ranges `(first row, rows)` without padding, of `count` rows starting at `first`. The vectors of a range are
        consecutive."""
        rows = np.arange(first, first + count)
        if self.form == "samples":
            rows = rows[self.geometry.is_row(rows)]
        places = self.place(0, rows) // (2 if self.interleaved else 1)
        return ((row, count) for row, _, count in stretches(rows, places))

    def pack(self, values):
        """Returns the bytes of the matrix with the values of a tensor, (height, width, channels) or, for samples, (batch, height,
        width, channels)."""
        n = self.geometry.n
        rows = matrix_values(self.form, np.repeat(values, n, axis=-1) if self.spread else values, self.geometry)
        shape = self.rows, self.blocks, self.tiles // self.blocks * n
        is_constant = self.region is Region.MODEL and self.form == "turned"
        padded = np.full(shape, -0.0 if is_constant else 0, rows.dtype)  # adding x * -0 changes no sum
        parts = rows.reshape(len(rows), self.blocks, -1)
        padded[: len(rows), :, : parts.shape[2]] = parts
        planes = padded.reshape(self.rows, self.tiles, n).swapaxes(0, 1)
        if not self.wide or self.interleaved:
            return np.ascontiguousarray(planes, np.float32 if self.wide else None).tobytes()
        return np.stack(halves_of(planes.astype(np.float32))).tobytes()

    def unpack(self, data, shape):
        """Returns the tensor, float32 if it is wide and else bfloat16, from the bytes of the matrix. `shape` is (height, width,
        channels)."""
        bits = np.frombuffer(data, "<u2").copy()  # callers may write into the tensor
        if self.interleaved:
            bits = bits.reshape(self.tiles, self.rows, self.geometry.n, 2).transpose(3, 1, 0, 2)[::-1]
        else:
            bits = bits.reshape(self.halves, self.tiles, self.rows, self.geometry.n).swapaxes(1, 2)
        bits = bits.reshape(self.halves, self.rows, self.blocks, -1)[..., : self.channels]
        rows = whole_of(bits.reshape(self.halves, self.rows, -1))
        return tensor_values(self.form, rows, shape, self.geometry)


@dataclass(frozen=True)
class Part(Matrix):
    """Some positions of each sample of a matrix, which a stage writes. Its geometry has these positions.

    Parameters
    ----------
    whole : Matrix
    origin : (int, int)
        Line and column of the first position in the whole matrix.
    """

    whole: Any = None
    origin: tuple[int, int] = (0, 0)

    def place(self, tile, row=0, half=0):
        sample, position = divmod(row, self.geometry.period)
        (y, x), geometry = divmod(position, self.geometry.width), self.whole.geometry
        line, column = self.origin
        return self.whole.place(tile, sample * geometry.period + (y + line) * geometry.width + x + column, half)


def matrix_values(form, values, geometry):
    """Returns the rows of a tensor in a form, (rows, channels). The last rows of padding are left out."""
    values, n = np.asarray(values), geometry.n
    if form in ("samples", "repeated"):
        if form == "repeated":
            values = np.broadcast_to(values.reshape(-1, values.shape[-1]), (geometry.positions, values.shape[-1]))
            values = np.broadcast_to(values, (geometry.batch, *values.shape))
        rows = np.zeros((len(values), geometry.period, values.shape[-1]), values.dtype)
        rows[:, : geometry.positions] = values.reshape(len(values), -1, values.shape[-1])
        return rows.reshape(-1, values.shape[-1])
    if form == "positions":
        return values.reshape(-1, values.shape[-1])
    if form == "transposed":
        return matrix_values("samples", values, geometry).T
    if form == "turned":
        return values.reshape(-1, values.shape[-1]).T
    flat = values.reshape(-1)
    if form == "number":
        return np.where(np.eye(n), flat.astype(np.float32), -0.0).astype(values.dtype)
    parts = flat.reshape(-1, values.shape[-1])
    padded = np.zeros((len(parts), tiles_of(parts.shape[1], n) * n), values.dtype)
    padded[:, : parts.shape[1]] = parts
    if form == "vector":
        return padded.reshape(-1, n)
    tiles = np.where(np.eye(n), padded.reshape(-1, n, 1).astype(np.float32), -0.0)
    return tiles.reshape(-1, n).astype(values.dtype)


def tensor_values(form, rows, shape, geometry):
    """Inverts :func:`matrix_values`. `shape` is (height, width, channels)."""
    if form == "samples":
        whole = rows[: geometry.batch * geometry.period].reshape(geometry.batch, geometry.period, -1)
        return np.ascontiguousarray(whole[:, : geometry.positions]).reshape(geometry.batch, *shape)
    if form == "turned":
        return np.ascontiguousarray(rows[: shape[-1]].T).reshape(shape)
    if form == "positions":
        return np.ascontiguousarray(rows[: shape[0] * shape[1]]).reshape(shape)
    assert form == "vector"
    return np.ascontiguousarray(rows.reshape(-1)[: shape[-1]]).reshape(shape)

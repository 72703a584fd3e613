"""Parameters and optimizer state, stored as planes of vectors in region SCRATCH.

A plane has 16 bits of each number. Binary32 numbers take two planes, for upper and lower halves; bfloat16 numbers take one plane.
Weights are stored as `[k tile][output][k lane]`, where a k tile has n inputs of the stage, so that n consecutive vectors are a
weight tile. In the forward pass a vector is a column of the tile; data gradients transpose the tile. Biases are stored as vectors
of n outputs. Stages that read few input channels store their weights transposed (Stacked).
"""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.tile_emitter import Tile
from ..compiler.memory.host_tensors import HostTensor, halves_of, whole_of
from ..golden.arithmetic import bfloat16
from ..ir.tiles import tiles_of
from ..ir.training import Parameter

__all__ = ["Planes", "Stacked", "StackedBias", "IMAGE", "MASTER"]

#: Name of the parameter itself, among the names of its optimizer state.
MASTER = "master"
#: Name of the parameter as the last step used it.
IMAGE = "image"


@dataclass(frozen=True, eq=False)
class Planes:
    """The planes of one parameter and its optimizer state.

    Parameters
    ----------
    parameter : Parameter
    n : int
    slots : dict of str to dtype
        Optimizer state of the parameter: {name: number type}.
    first : int
        Index of the first vector in region SCRATCH.
    shape : tuple of int or None
        Shape of the weights as used on the core, if it differs from the parameter's shape. For example, the core may read the
        inputs at several kernel positions as channels of one position.
    """

    parameter: Parameter
    n: int
    slots: dict = field(repr=False)
    first: int
    shape: tuple | None = None

    @property
    def is_bias(self):
        return self.parameter.term is None

    @property
    def _shape(self):
        return self.shape or self.parameter.initial.shape

    @property
    def outputs(self):
        """Returns the number of outputs of the stage."""
        return self._shape[-1]

    @property
    def k_tiles(self):
        """Returns the number of k tiles (tiles of n inputs) over all kernel positions. A bias has one k tile."""
        if self.is_bias:
            return 1
        height, width, inputs, _ = self._shape
        return height * width * tiles_of(inputs, self.n)

    @property
    def rows(self):
        """Returns the number of vectors in a k tile, which is the number of outputs, rounded up to whole tiles. A bias has one
        vector for each tile of outputs."""
        tiles = tiles_of(self._shape[-1], self.n)
        return tiles if self.is_bias else tiles * self.n

    @property
    def vectors(self):
        """Returns the number of vectors in a plane. It is rounded up to whole tiles, and the padding is 0."""
        return -(-self.k_tiles * self.rows // self.n) * self.n

    @property
    def kinds(self):
        """Returns the number types of the parameter and its optimizer state, {name: dtype}."""
        return {MASTER: np.float32, **self.slots}

    def places(self, name):
        """Returns the address of the first vector of each plane with this name: one plane for bfloat16, two for float32."""
        place = self.first
        for other, kind in self.kinds.items():
            count = 1 if kind == bfloat16 else 2
            if other == name:
                return [place + index * self.vectors for index in range(count)]
            place += count * self.vectors
        raise KeyError(name)

    @property
    def size(self):
        """Returns the number of vectors in all planes."""
        return sum(len(self.places(name)) for name in self.kinds) * self.vectors

    def tile(self, k, output, transpose=0):
        """Returns the weight :class:`Tile` of k tile `k`, for the tile of outputs `output`."""
        return Tile(Region.SCRATCH, self.places(MASTER)[0] + k * self.rows + output * self.n, transpose)

    def stretches(self, first, count):
        """Returns the ranges of rows that contain `count` rows of a bias starting at row `first`, as a list of `(first row,
        rows)`."""
        return [(first, count)]

    @property
    def row_numbers(self):
        """Returns the indices, within a plane, of the vectors from :meth:`arrange`."""
        return np.arange(self.k_tiles * self.rows)

    def arrange(self, values):
        """Arranges an array with the parameter's shape as vectors, (vectors, n). The padding is 0."""
        if self.is_bias:
            return np.pad(values, (0, self.rows * self.n - len(values))).reshape(-1, self.n)
        height, width, inputs, outputs = self._shape
        padded = np.zeros((height * width, tiles_of(inputs, self.n) * self.n, self.rows), values.dtype)
        padded[:, :inputs, :outputs] = values.reshape(height * width, inputs, outputs)
        return padded.reshape(self.k_tiles, self.n, self.rows).swapaxes(1, 2).reshape(-1, self.n)

    def restore(self, vectors):
        """Restores the array from the vectors of :meth:`arrange`."""
        if self.is_bias:
            return vectors.ravel()[: self._shape[0]].copy()
        height, width, inputs, outputs = self._shape
        padded = vectors.reshape(self.k_tiles, self.rows, self.n).swapaxes(1, 2).reshape(height * width, -1, self.rows)
        return np.ascontiguousarray(padded[:, :inputs, :outputs]).reshape(self.parameter.initial.shape)

    @property
    def tensors(self):
        """Returns the :class:`.HostTensor` of the parameter, and of its optimizer state, {name: tensor}."""
        found = {}
        for name in self.kinds:
            rows = np.concatenate([place + self.row_numbers for place in self.places(name)])
            found[name] = HostTensor(Region.SCRATCH, rows, self._pack, self._unpack)
        return found

    def _pack(self, values):
        return np.concatenate(halves_of(self.arrange(values))).tobytes()

    def _unpack(self, data):
        return self.restore(whole_of(np.frombuffer(data, np.uint16).reshape(-1, len(self.row_numbers), self.n)))


class Stacked(Planes):
    """Planes that contain the weights of one k tile and also the bias of their stage. For each tile of n outputs, there is one
    vector per input, and then one vector of the bias."""

    @property
    def each(self):
        """Returns the number of vectors for a tile of outputs: one per input, and one for the bias."""
        return self._shape[2] + 1

    @property
    def k_tiles(self):
        return 1

    @property
    def rows(self):
        return tiles_of(self._shape[3], self.n) * self.each

    @property
    def vectors(self):
        return -(-(self.rows + self.n) // self.n) * self.n  # the last tile extends beyond the last row

    def tile(self, k, output, transpose=0):
        return Tile(Region.SCRATCH, self.places(MASTER)[0] + output * self.each, 1 - transpose)

    @property
    def row_numbers(self):
        return np.delete(np.arange(self.rows), np.s_[self.each - 1 :: self.each])

    def arrange(self, values):
        inputs, outputs = self._shape[2:]
        padded = np.zeros((inputs, tiles_of(outputs, self.n) * self.n), values.dtype)
        padded[:, :outputs] = values.reshape(inputs, outputs)
        return padded.reshape(inputs, -1, self.n).swapaxes(0, 1).reshape(-1, self.n)

    def restore(self, vectors):
        inputs, outputs = self._shape[2:]
        padded = vectors.reshape(-1, inputs, self.n).swapaxes(0, 1).reshape(inputs, -1)
        return np.ascontiguousarray(padded[:, :outputs]).reshape(self.parameter.initial.shape)


@dataclass(frozen=True, eq=False)
class StackedBias(Planes):
    """A bias that is stored in the planes of its stage's weights.

    Parameters
    ----------
    weights : Stacked
    """

    weights: Stacked | None = None

    def places(self, name):
        return self.weights.places(name)

    @property
    def size(self):
        return 0

    def stretches(self, first, count):
        return [(row, 1) for row in self.row_numbers[first : first + count].tolist()]

    @property
    def row_numbers(self):
        return np.arange(self.weights.each - 1, self.weights.rows, self.weights.each)

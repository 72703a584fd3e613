"""Layouts in host memory of tensors with one position per sample."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.tile_emitter import Tile
from ..compiler.memory.host_tensors import host_tensor
from ..compiler.memory.layout import packed
from ..ir.graph import Tensor

__all__ = ["Flat"]


@dataclass(frozen=True)
class Flat:
    """A tensor with one position per sample, for all samples. It is stored as `[chunk][tile][sample]`, where a chunk is a range
    of samples.

    Parameters
    ----------
    channels, n : int
    starts : tuple of int
        First sample of each chunk, a multiple of n, and the end of the last chunk.
    region : Region or None
    first : int
        Index of the first vector in the region.
    size : int
        Vectors per n values: 1 for bfloat16, 2 for binary32.
    """

    channels: int
    n: int
    starts: tuple[int, ...]
    region: Region | None = None
    first: int = 0
    size: int = 1

    @cached_property
    def layouts(self):
        """Returns the layout of each chunk, a :class:`sim.compiler.memory.layout.Layout`."""
        widths = (end - first for first, end in zip(self.starts, self.starts[1:]))
        return [
            packed(Tensor("chunk", self.channels, 1, width), self.n, 1, beside=-width % self.n, along_x=True) for width in widths
        ]

    @cached_property
    def _firsts(self):
        return np.cumsum([0, *(layout.size for layout in self.layouts)]).tolist()

    @property
    def tiles(self):
        return self.layouts[0].tiles

    @property
    def vectors(self):
        """Returns the total number of vectors."""
        return self._firsts[-1] * self.size

    def at(self, region, first):
        """Returns the same tensor at a different address, starting at vector `first` of a region."""
        return replace(self, region=region, first=first)

    def vector(self, tile, sample):
        """Returns the index in the region of the vector with tile `tile` of a sample."""
        stretch = bisect_right(self.starts, sample, hi=len(self.starts) - 1) - 1
        position = self.layouts[stretch].position(0, 0, tile, sample - self.starts[stretch])
        return self.first + (self._firsts[stretch] + position) * self.size

    def tile(self, tile, sample, transpose=0):
        """Returns the weight :class:`Tile` that consists of the vectors of n samples, starting at `sample`, in tile `tile` of
        the channels."""
        return Tile(self.region, self.vector(tile, sample), transpose)

    @property
    def host_tensor(self):
        return host_tensor(self.region, self.first, self.vectors, self.pack, self.unpack)

    def pack(self, values):
        """Returns the bytes of the tensor from bfloat16 values (batch, channels)."""
        stretches = zip(self.layouts, self.starts, self.starts[1:])
        return b"".join(layout.pack(values[first:end, None, None]) for layout, first, end in stretches)

    def unpack(self, data, dtype="<f4"):
        """Reads values from the bytes of the tensor. Returns float32 (batch, channels)."""
        each = self.n * np.dtype(dtype).itemsize
        stretches = zip(self.layouts, self._firsts)
        return np.concatenate([layout.unpack(data[first * each :], dtype)[:, 0, 0] for layout, first in stretches])

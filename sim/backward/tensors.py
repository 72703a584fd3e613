"""Layouts of tensors in host memory, and the tiles that are read from them."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.memory.layout import Layout
from ..ir.graph import Tensor

__all__ = ["Tile", "NOTHING", "Flat"]


class Tile(NamedTuple):
    """A weight tile: n consecutive vectors for the weight FIFO, columns of the tile or its rows (`transpose`)."""

    region: Region
    vector: int
    transpose: int = 0


#: A tile of zeros.
NOTHING = Tile(Region.MODEL, 0)


@dataclass(frozen=True)
class Flat:
    """A tensor of one position, for all samples: `[stretch][tile][sample]`.

    Parameters
    ----------
    channels, n : int
    starts : tuple of int
        First samples of the stretches, multiples of n, and the end of the last one.
    region : Region or None
    first : int
        First vector in the region.
    size : int
        Vectors of a value: 2 of binary32.
    """

    channels: int
    n: int
    starts: tuple[int, ...]
    region: Region | None = None
    first: int = 0
    size: int = 1

    @cached_property
    def layouts(self):
        """Layouts of the stretches, each a :class:`sim.compiler.memory.layout.Layout`."""
        widths = (end - first for first, end in zip(self.starts, self.starts[1:]))
        return [
            Layout(Tensor("chunk", self.channels, 1, width), self.n, 1, beside=-width % self.n, along_x=True) for width in widths
        ]

    @cached_property
    def _firsts(self):
        return np.cumsum([0, *(layout.size for layout in self.layouts)]).tolist()

    @property
    def tiles(self):
        return self.layouts[0].tiles

    @property
    def vectors(self):
        """Total number of vectors."""
        return self._firsts[-1] * self.size

    def at(self, region, first):
        """Returns the same tensor at this place."""
        return replace(self, region=region, first=first)

    def vector(self, tile, sample):
        """Returns the place of a sample's vector in a tile."""
        stretch = bisect_right(self.starts, sample, hi=len(self.starts) - 1) - 1
        position = self.layouts[stretch].position(0, 0, tile, sample - self.starts[stretch])
        return self.first + (self._firsts[stretch] + position) * self.size

    def tile(self, tile, sample, transpose=0):
        """Returns the :class:`Tile` of n samples from this one on."""
        return Tile(self.region, self.vector(tile, sample), transpose)

    def pack(self, values):
        """Returns the bytes of bfloat16 (batch, channels)."""
        stretches = zip(self.layouts, self.starts, self.starts[1:])
        return b"".join(layout.pack(values[None, None, first:end]) for layout, first, end in stretches)

    def unpack(self, data, dtype="<f4"):
        """Returns float32 (batch, channels) from the bytes of the tensor."""
        each = self.n * np.dtype(dtype).itemsize
        stretches = zip(self.layouts, self._firsts)
        return np.concatenate([layout.unpack(data[first * each :], dtype)[0, 0] for layout, first in stretches])

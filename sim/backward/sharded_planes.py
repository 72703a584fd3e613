"""Weights whose masters and optimizer state are divided among the cores of a ring. Each core owns a segment of the outputs of
every k tile.

The region SCRATCH of every core contains the image: the upper halves of all masters. At the beginning of a step, every core
gathers the image, which it then reads in the forward and the backward pass. The planes of the core's own segment follow the
image, as `[k tile][output of its segment]`, at the same address on every core. REDUCE_SCATTER leaves segment (i + 1) mod P on
core i. Core i therefore owns this segment.
"""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..autodiff.rings import segment_outputs
from ..compiler.codegen.tile_emitter import Tile
from ..compiler.memory.host_tensors import halves_of, host_tensor, whole_of
from ..golden.arithmetic import bfloat16
from ..golden.ring import held_by
from .parameters import IMAGE, Planes

__all__ = ["ShardedPlanes"]


@dataclass(frozen=True, eq=False)
class ShardedPlanes(Planes):
    """The planes of one parameter's weights, divided among `cores` cores.

    Parameters
    ----------
    cores : int
    """

    cores: int = 1

    @property
    def segment(self):
        """Returns the number of vectors in a k tile that a core updates. Segments of the last cores may extend beyond the last
        output."""
        return segment_outputs(self.outputs, self.cores)

    @property
    def vectors(self):
        return -(-(self.k_tiles * self.segment + self.n) // self.n) * self.n  # the last tile extends beyond the last row

    @property
    def _image_vectors(self):
        return self.k_tiles * self.rows

    @property
    def size(self):
        return self._image_vectors + super().size

    def places(self, name):
        return [self._image_vectors + place for place in super().places(name)]

    def tile(self, k, output, transpose=0):
        return Tile(Region.SCRATCH, self.first + k * self.rows + output * self.n, transpose)

    def _segments(self, vectors):
        """Splits vectors (k tiles * rows, n) into the segments of the cores, (cores, k tiles * segment, n)."""
        whole = vectors.reshape(self.k_tiles, self.rows, self.n)
        padded = np.zeros((self.k_tiles, max(self.rows, self.cores * self.segment), self.n), vectors.dtype)
        padded[:, : self.rows] = whole
        parts = padded[:, : self.cores * self.segment].reshape(self.k_tiles, self.cores, -1, self.n)
        return parts.swapaxes(0, 1).reshape(self.cores, -1, self.n)

    def _joined(self, segments):
        """Joins segments from :meth:`_segments` to the original vectors."""
        parts = segments.reshape(self.cores, self.k_tiles, -1, self.n).swapaxes(0, 1).reshape(self.k_tiles, -1, self.n)
        whole = np.zeros((self.k_tiles, self.rows, self.n), segments.dtype)
        count = min(self.rows, parts.shape[1])
        whole[:, :count] = parts[:, :count]
        return whole.reshape(-1, self.n)

    @property
    def row_numbers(self):
        return np.arange(self.k_tiles * self.segment)

    @property
    def tensors(self):
        found = {name: replace(tensor, divided=True) for name, tensor in super().tensors.items()}
        image = host_tensor(Region.SCRATCH, self.first, self._image_vectors, None, self._unpack_image)
        return {**found, IMAGE: image}

    def _pack(self, values):
        segments = np.concatenate([self._segments(half) for half in halves_of(self.arrange(values))], axis=1)
        return [segments[held_by(rank, self.cores)].tobytes() for rank in range(self.cores)]

    def _unpack(self, parts):
        segments = [parts[(segment - 1) % self.cores] for segment in range(self.cores)]
        halves = np.frombuffer(b"".join(segments), np.uint16).reshape(self.cores, -1, len(self.row_numbers), self.n)
        return self.restore(whole_of([self._joined(half) for half in halves.swapaxes(0, 1)]))

    def _unpack_image(self, data):
        return self.restore(np.frombuffer(data, bfloat16).reshape(-1, self.n))

"""Named tensors in host memory: the addresses of their vectors, and their conversion from and to numpy arrays."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..golden.arithmetic import bfloat16

__all__ = ["HostTensor", "halves_of", "whole_of"]


def halves_of(values):
    """Splits an array into uint16 arrays: the upper and the lower halves of float32, or the bit patterns of bfloat16."""
    if values.dtype == bfloat16:
        return [values.view(np.uint16)]
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return [(bits >> np.uint32(16)).astype(np.uint16), bits.astype(np.uint16)]


def whole_of(halves):
    """Joins uint16 arrays from :func:`halves_of` to the original array."""
    if len(halves) == 1:
        return np.ascontiguousarray(halves[0]).view(bfloat16)
    return (halves[0].astype(np.uint32) << np.uint32(16) | halves[1]).view(np.float32)


@dataclass(frozen=True, eq=False)
class HostTensor:
    """A tensor that the host writes or reads."""

    region: Region
    #: Slice or int array. Indices of the tensor's vectors in the region. In region MODEL, they are counted from the first
    #: constant.
    rows: slice | np.ndarray = field(repr=False)
    pack: Any = None  # Converts an array to the bytes of the vectors. None: the host only reads the tensor.
    unpack: Any = None  # Converts the bytes of the vectors to an array. None: the host only writes the tensor.
    #: True: each core of a ring has a part of the tensor. `pack` then returns the bytes of each core, and `unpack` takes them.
    divided: bool = False

    def write(self, image, values, rank=0):
        """Writes the tensor to the image of its region on core `rank` of a ring: uint16 (vectors, n)."""
        data = self.pack(values)
        image[self.rows] = np.frombuffer(data[rank] if self.divided else data, "<u2").reshape(-1, image.shape[1])

    def read(self, images):
        """Returns the tensor of each core, from a list of the cores' images of its region."""
        parts = [image[self.rows].tobytes() for image in images]
        return [self.unpack(parts)] * len(parts) if self.divided else [*map(self.unpack, parts)]

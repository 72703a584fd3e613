"""Affine maps from the indices of a vector to a position in memory.

A vector of a tensor has four indices: sample, row y, tile of channels, and column x. Each index has a stride. The tile or y may
be split in two parts, each with its own stride.
"""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["INDICES", "Axis", "AffineMap", "affine_map"]

#: The indices of a vector.
INDICES = ("sample", "y", "tile", "x")


class Axis(NamedTuple):
    """An axis of a tensor in memory.

    Parameters
    ----------
    name : str
        The index that the axis counts, one of `INDICES`. If two axes count one index, the outer axis counts the quotient of the
        index by the inner axis's size, and the inner axis counts the remainder.
    size, stride : int
        Number of values of the index, and the distance from one to the next, in positions.
    margin : int
        Number of further values, after the last one, whose positions hold zeros.
    """

    name: str
    size: int
    stride: int
    margin: int = 0


@dataclass(frozen=True)
class AffineMap:
    """The map from indices to positions.

    Parameters
    ----------
    origin : int
    strides : tuple
        `(size of the inner axis, stride of the outer axis, stride of the inner axis)` for each of `INDICES`. An index that is not
        split has only an outer axis.
    """

    origin: int
    strides: tuple

    def __call__(self, *indices):
        """Returns the position of a vector. Indices are integers, which may be negative in margins, or integer arrays."""
        position = self.origin
        for index, (size, outer, inner) in zip(indices, self.strides):
            position = position + (index * outer if size == 1 else index // size * outer + index % size * inner)
        return position


def affine_map(axes, origin):
    """Returns the :class:`AffineMap` of axes, from the outermost to the innermost. Indices without an axis have no stride."""
    strides = []
    for name in INDICES:
        outer, *inner = [axis for axis in axes if axis.name == name] or [Axis(name, 1, 0)]
        strides.append((inner[0].size, outer.stride, inner[0].stride) if inner else (1, outer.stride, 0))
    return AffineMap(origin, tuple(strides))

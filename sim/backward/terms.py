"""Sources of a term's tiles of weights: its parameter, or region MODEL for fixed weights."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.image import dense_weights
from .tensors import Tile

__all__ = ["ParameterTiles", "FixedTiles"]


class ParameterTiles:
    """Tiles of a trained term.

    Parameters
    ----------
    planes : Planes
    kernel : (int, int)
    inputs : int
        Tiles of the source's channels, in the forward pass.
    transposed : bool
        Whether it is the data gradient's term: kernel positions last to first, inputs and outputs changed.
    """

    def __init__(self, planes, kernel, inputs, transposed=False):
        self.planes, self.kernel, self.inputs, self.transposed = planes, kernel, inputs, transposed

    def number(self, ky, kx, tile):
        """Returns the index of a k tile."""
        return (ky * self.kernel[1] + kx) * self.inputs + tile

    def tile(self, ky, kx, tile, column):
        """Returns the :class:`Tile` of a pass over a tile of the source, for a column tile of the sums."""
        height, width = self.kernel
        if self.transposed:
            ky, kx, tile, column = height - 1 - ky, width - 1 - kx, column, tile
        return self.planes.tile(self.number(ky, kx, tile), column, int(self.transposed))


class FixedTiles:
    """Tiles of a term with fixed weights.

    Parameters
    ----------
    constants : Constants
    term : Term
    """

    def __init__(self, constants, term):
        self.constants, self.term, self.n = constants, term, constants.n
        self.places = {}

    def tile(self, ky, kx, tile, column):
        """Returns the tile as ParameterTiles does; None if all weights are zero."""
        key = ky, kx, tile, column
        if key not in self.places:
            dense = dense_weights(self.term, column, 1, self.n)[ky, kx, tile * self.n : (tile + 1) * self.n]
            values = np.where(dense & 0x7FFF, dense, 0).T  # a column a vector
            self.places[key] = self.constants.add(values.astype("<u2").tobytes()) if values.any() else None
        place = self.places[key]
        return place if place is None else Tile(Region.MODEL, place)

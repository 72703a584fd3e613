"""The weight tiles of a term: tiles of its parameter in SCRATCH, or tiles in region MODEL for fixed weights."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.tile_emitter import Tile
from ..compiler.image import dense_weights

__all__ = ["ParameterTiles", "FixedTiles"]


class ParameterTiles:
    """The weight tiles of a trained term.

    Parameters
    ----------
    planes : Planes
    kernel : (int, int)
    inputs : int
        Number of channel tiles of the source, in the forward pass.
    transposed : bool
        True for the term of a data gradient: the kernel positions are reversed, and inputs and outputs exchanged.
    """

    def __init__(self, planes, kernel, inputs, transposed=False):
        self.planes, self.kernel, self.inputs, self.transposed = planes, kernel, inputs, transposed

    def number(self, ky, kx, tile):
        """Returns the index of the k tile for a kernel position and a channel tile of the source."""
        return (ky * self.kernel[1] + kx) * self.inputs + tile

    def tile(self, ky, kx, tile, column):
        """Returns the weight :class:`Tile` of a pass: kernel position (ky, kx), channel tile `tile` of the source, column tile
        `column` of the sums."""
        height, width = self.kernel
        if self.transposed:
            ky, kx, tile, column = height - 1 - ky, width - 1 - kx, column, tile
        return self.planes.tile(self.number(ky, kx, tile), column, int(self.transposed))


class FixedTiles:
    """The weight tiles of a term with fixed weights.

    Parameters
    ----------
    constants : Constants
    term : Term
    """

    def __init__(self, constants, term):
        self.constants, self.term, self.n = constants, term, constants.n
        self.places = {}

    def tile(self, ky, kx, tile, column):
        """Returns the weight tile of a pass like :meth:`ParameterTiles.tile`, or None if all its weights are zero."""
        key = ky, kx, tile, column
        if key not in self.places:
            dense = dense_weights(self.term, column, 1, self.n)[ky, kx, tile * self.n : (tile + 1) * self.n]
            values = np.where(dense & 0x7FFF, dense, 0).T  # each column of the tile is a vector
            self.places[key] = self.constants.add(values.astype("<u2").tobytes()) if values.any() else None
        place = self.places[key]
        return place if place is None else Tile(Region.MODEL, place)

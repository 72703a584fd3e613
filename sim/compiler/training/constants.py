"""The constants of a training step, in region MODEL after the instructions."""

import numpy as np

from ...golden.arithmetic import bfloat16
from ...golden.function_tables import table_of
from ..memory.layout import ZEROS

__all__ = ["Constants"]


class Constants:
    """Zeros, function tables, and matrices of constants and factors.

    Parameters
    ----------
    lowered : Lowered
    functions : sequence
        Functions by table.
    resident : sequence of Matrix
        Factor tiles that stay on the chip.
    has_upper_rows : bool
        True if sums start from rows of bfloat16.

    Members
    -------
    tables : dict
        {`key` of a function: first vector of its table}.
    first : int
        First vector of the matrices.
    nothing, ones : int
        First vectors of a tile of -0 and of a tile of ones.
    """

    def __init__(self, lowered, functions, resident, has_upper_rows):
        self.lowered, self.functions, self.has_upper_rows = lowered, tuple(functions), has_upper_rows
        self._n = n = lowered.geometry.n
        self._resident = {matrix.name: matrix for matrix in resident}
        self.zeros = -(-ZEROS // n) * n
        self.nothing, self.ones, self.identity = self.zeros, self.zeros + n, self.zeros + 2 * n
        self.tables, self.first = {}, self.zeros + 3 * n
        for function in self.functions:
            self.tables[function.key] = self.first
            self.first += len(table_of(function).packed()) // (2 * n)

    @property
    def resident(self):
        """Names of the tiles that stay on the chip."""
        return ("ones", "identity", *self._resident)

    def vector(self, name):
        """Returns the first vector of a resident tile."""
        return {"ones": self.ones, "identity": self.identity}.get(name) or self.first + self._resident[name].vector

    def place(self, name):
        """Returns the first vector of the tile of a factor that the host writes."""
        return self.first + self.lowered.matrix(name, "number").vector

    def pack(self):
        """Returns all constants as bytes. Factors that the host writes are 0."""
        n, step = self._n, self.lowered.step
        tiles = [np.full((n, n), -0.0), np.ones((n, n)), np.eye(n)]
        parts = [bytes(2 * n * self.zeros), *(tile.astype(bfloat16).tobytes() for tile in tiles)]
        parts += [table_of(function).packed() for function in self.functions]
        matrices = {}
        for (name, _), matrix in self.lowered.matrices.items():
            if name in step.constants:
                matrices[matrix.vector] = matrix.pack(step.constants[name])
            elif name in step.factors.values():
                matrices[matrix.vector] = bytes(2 * n * n)
        padded = (
            matrices[vector].ljust(-(-len(matrices[vector]) // (2 * n * n)) * 2 * n * n, b"\0") for vector in sorted(matrices)
        )
        return b"".join([*parts, *padded])

"""The constants of a training step, in region MODEL after the instructions."""

import numpy as np

from ..codegen.tile_emitter import StepConstants

__all__ = ["Constants"]


class Constants(StepConstants):
    """Constants with matrices of constants and factors.

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
    first : int
        First vector of the matrices.
    nothing, identity : int
        First vectors of a tile of -0 and of the identity.
    """

    def __init__(self, lowered, functions, resident, has_upper_rows):
        n = lowered.geometry.n
        super().__init__(n, 0, {"nothing": np.full((n, n), -0.0), "ones": np.ones((n, n)), "identity": np.eye(n)}, functions)
        self.lowered, self.has_upper_rows = lowered, has_upper_rows
        self._resident = {matrix.name: matrix for matrix in resident}
        self.nothing, self.identity = super().vector("nothing"), super().vector("identity")

    @property
    def resident(self):
        """Names of the tiles that stay on the chip."""
        return ("ones", "identity", *self._resident)

    def vector(self, name):
        """Returns the first vector of a resident tile."""
        return self.first + self._resident[name].vector if name in self._resident else super().vector(name)

    def place(self, name):
        """Returns the first vector of the tile of a factor that the host writes."""
        return self.first + self.lowered.matrix(name, "number").vector

    def pack(self):
        """Returns all constants as bytes. Factors that the host writes are 0."""
        n, step, matrices = self.n, self.lowered.step, {}
        for (name, _), matrix in self.lowered.matrices.items():
            if name in step.constants:
                matrices[matrix.vector] = matrix.pack(step.constants[name])
            elif name in step.factors.values():
                matrices[matrix.vector] = bytes(2 * n * n)
        padded = (
            matrices[vector].ljust(-(-len(matrices[vector]) // (2 * n * n)) * 2 * n * n, b"\0") for vector in sorted(matrices)
        )
        return b"".join([super().pack(), *padded])

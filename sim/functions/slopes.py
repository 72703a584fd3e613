"""Two straight lines that meet at 0. Models write them in small operators, and the core computes them with LeakyRelu."""

from dataclasses import dataclass

import numpy as np

from .formulas import constant, formula, largest, least, product

__all__ = ["Slopes"]


@dataclass(frozen=True)
class Slopes:
    """The function with slope `below` for negative numbers and slope `above` for positive ones, for proofs as of a
    :class:`.Function`."""

    below: float
    above: float

    def exact(self, x):
        with np.errstate(over="ignore"):
            x = np.clip(x, -1e300, 1e300)
            return np.where(x < 0, self.below * x, self.above * x)

    def formula(self, x):
        lines = (constant(self.below), least(x, constant(0))), (constant(self.above), largest(x, constant(0)))
        return formula("add", *(product(*line) for line in lines))

    @property
    def factors(self):
        """Returns `(before, alpha, after)`: the function is after * LeakyRelu(before * x), with this alpha."""
        if self.below >= 0 >= self.above:  # LeakyRelu keeps positive numbers, so a factor after it changes the sign
            before, alpha, _ = Slopes(-self.below, -self.above).factors
            return before, alpha, -1.0
        if self.above > 0:
            return self.above, self.below / self.above, 1.0
        return self.below, self.above / self.below, 1.0

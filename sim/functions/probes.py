"""The numbers at which formulas are tried, to find the function that one of them may be."""

from collections import namedtuple

import numpy as np

from .ranges import LARGEST

__all__ = ["NEAR", "LARGEST", "PROBES", "FEW", "Probes", "special"]

#: From 0, where hard_sigmoid is a line.
NEAR = 2.0**-10

#: Values at the numbers that parameters of functions are read off.
Probes = namedtuple("Probes", "zero minus_one one left right lowest highest")

_SPECIAL = Probes(0.0, -1.0, 1.0, -NEAR, NEAR, -LARGEST, LARGEST)
_SIZES = [*np.logspace(-36, 38, 38), 0.03, 0.3, 0.7, 1.3, 2, 2.7, 3.3, 4.2, 5.5, 6.7, 8, 12, 17, 25, 40, 60, 80, 87, 130, 300]
PROBES = np.array([*_SPECIAL, *_SIZES, *np.negative(_SIZES)])

#: Places of those among them that tell the most.
FEW = np.flatnonzero(np.isin(PROBES, (-1, 1, -2, 2, -4.2, -0.3, 12)))


def special(values):
    """The :class:`Probes` among values at all of PROBES."""
    return Probes(*values[: len(_SPECIAL)])

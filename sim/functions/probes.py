"""Probes: the numbers at which formulas are evaluated to find a candidate function."""

from collections import namedtuple

import numpy as np

from .ranges import LARGEST

__all__ = ["NEAR", "LARGEST", "PROBES", "FEW", "Probes", "special"]

#: Distance from 0 within which hard_sigmoid is linear.
NEAR = 2.0**-10

#: Values of a formula at the special probes, from which parameters of functions are computed.
Probes = namedtuple("Probes", "zero minus_one one left right lowest highest")

_SPECIAL = Probes(0.0, -1.0, 1.0, -NEAR, NEAR, -LARGEST, LARGEST)
_SIZES = [*np.logspace(-36, 38, 38), 0.03, 0.3, 0.7, 1.3, 2, 2.7, 3.3, 4.2, 5.5, 6.7, 8, 12, 17, 25, 40, 60, 80, 87, 130, 300]
PROBES = np.array([*_SPECIAL, *_SIZES, *np.negative(_SIZES)])

#: Indices of the most selective probes.
FEW = np.flatnonzero(np.isin(PROBES, (-1, 1, -2, 2, -4.2, -0.3, 12)))


def special(values):
    """Returns the :class:`Probes` among values at all of PROBES."""
    return Probes(*values[: len(_SPECIAL)])

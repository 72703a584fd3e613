"""Probes: the numbers at which a formula is evaluated to find the function that it may equal."""

from collections import namedtuple

import numpy as np

from .ranges import LARGEST

__all__ = ["NEAR", "LARGEST", "PROBES", "FEW", "Probes", "special"]

#: hard_sigmoid is linear up to this distance from 0.
NEAR = 2.0**-10

#: Values of a formula at special numbers, from which the parameters of functions are computed.
Probes = namedtuple("Probes", "zero minus_one one left right lowest highest")

_SPECIAL = Probes(0.0, -1.0, 1.0, -NEAR, NEAR, -LARGEST, LARGEST)
_SIZES = [*np.logspace(-36, 38, 38), 0.03, 0.3, 0.7, 1.3, 2, 2.7, 3.3, 4.2, 5.5, 6.7, 8, 12, 17, 25, 40, 60, 80, 87, 130, 300]
PROBES = np.array([*_SPECIAL, *_SIZES, *np.negative(_SIZES)])

#: Indices of the probes that distinguish functions best.
FEW = np.flatnonzero(np.isin(PROBES, (-1, 1, -2, 2, -4.2, -0.3, 12)))


def special(values):
    """Selects the :class:`Probes` from a formula's values at all of PROBES."""
    return Probes(*values[: len(_SPECIAL)])

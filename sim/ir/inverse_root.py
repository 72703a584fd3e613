"""The function tables for 1 / sqrt in :mod:`sim.ir.optimizers`: for Adam and for the norm of gradients."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .optimizers import TABLE_BINADES, TABLE_MIDDLE

__all__ = ["InverseRoot", "NormFactor"]


@dataclass(frozen=True)
class InverseRoot:
    """The function of Adam's table, in which two lookups cover 28 binades. T is `TABLE_MIDDLE`. For s from 2^-14 T to T, f(s) =
    sqrt(T / s), and f(-s) = sqrt(T / (2^14 s)). Outside this range, the function has the value at the nearer end. The class has
    the interface that :func:`sim.golden.function_tables.table_of` needs."""

    is_table: ClassVar = True
    scale: ClassVar = 0
    key: ClassVar = ("inverse root", TABLE_BINADES, TABLE_MIDDLE.hex())

    def __str__(self):
        return "Adam's inverse root"

    def exact(self, x):
        size = np.clip(np.abs(x), TABLE_MIDDLE * 2.0**-TABLE_BINADES, TABLE_MIDDLE)
        return np.sqrt(TABLE_MIDDLE / (size * np.where(np.signbit(x), 2.0**TABLE_BINADES, 1.0)))


@dataclass(frozen=True)
class NormFactor:
    """The function min(1, 1 / sqrt(x)), for all x. It is 1 at 0, where 1 / sqrt(x) is infinite."""

    is_table: ClassVar = True
    scale: ClassVar = 3
    key: ClassVar = ("norm factor",)

    def __str__(self):
        return "the factor of clip_norm"

    def exact(self, x):
        return 1 / np.sqrt(np.maximum(x, 1))

"""The function table for 1 / sqrt in :class:`sim.ir.optimizers.Adam`. Two lookups in one table cover 28 binades."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .optimizers import TABLE_BINADES, TABLE_MIDDLE

__all__ = ["InverseRoot"]


@dataclass(frozen=True)
class InverseRoot:
    """The function of the table. T is `TABLE_MIDDLE`. For s from 2^-14 T to T, f(s) = sqrt(T / s), and f(-s) = sqrt(T / (2^14
    s)). Outside this range, the function has the value at the nearer end. The class has the interface that
    :func:`sim.golden.function_tables.table_of` needs."""

    is_table: ClassVar = True
    scale: ClassVar = 0
    key: ClassVar = ("inverse root", TABLE_BINADES, TABLE_MIDDLE.hex())

    def __str__(self):
        return "Adam's inverse root"

    def exact(self, x):
        size = np.clip(np.abs(x), TABLE_MIDDLE * 2.0**-TABLE_BINADES, TABLE_MIDDLE)
        return np.sqrt(TABLE_MIDDLE / (size * np.where(np.signbit(x), 2.0**TABLE_BINADES, 1.0)))

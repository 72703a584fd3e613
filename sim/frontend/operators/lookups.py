"""Rows of constant tables that integers of an input select, such as embeddings of token ids.

The host stores the selected rows in place of the integers when it writes a sample, so the core only loads them.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Input
from ...ir.errors import ModelError
from ..index.values import STAND_IN, limited, show

__all__ = ["looked_up"]


def looked_up(step, table, numbers):
    """Returns the rows of a table (rows, ...) with the numbers of a symbolic tensor."""
    source = numbers.source
    if not isinstance(source, Input) or source.table is not None or not numbers.integer or numbers.index.min(initial=0) < 0:
        raise ModelError(
            f"{step.title}: its indices must be constant, or integers of an input that are not changed before; these are computed"
        )
    if table.dtype.kind != "f":
        raise ModelError(f"{step.title}: its table holds {table.dtype}; only floating-point numbers are supported")
    rows, rest = table.shape[0], table.shape[1:]
    if not table.size:
        raise ModelError(f"{step.title}: its table of {show(table.shape)} is empty")
    table, low = table.astype(np.float64), np.isneginf(table)  # minus infinity masks positions, as for a padding token
    limited(step, numbers.size, *rest)
    depth = prod(rest)
    node = Input(
        **step.titles,
        sample=(numbers.size, depth),
        shape=(1, numbers.size, depth),
        places=source.places[numbers.index],
        table=np.where(low, STAND_IN, table).reshape(rows, depth),
    )
    index = np.arange(numbers.size * depth).reshape(*numbers.dims, *rest)
    return replace(numbers.of(node, index), integer=False, low=bool(low.any()))

"""Rows of constant tables, selected by integers of an input, with positions permuted or joined."""

import numpy as np
from onnx import TensorProto

from .drawing import Value, block

__all__ = ["looked_up"]


def looked_up(g):
    """Appends an input of integers and the rows of a table that they select. Returns (positions, values), or (values,)."""
    rows, depth, count = g.integer(2, 9), g.width(), g.integer(1, 5)
    ids = g.input(count, kind=g.choose(TensorProto.INT64, TensorProto.INT32), rows=rows)
    return Value(g.node("Gather", g.normal(rows, depth), ids, axis=0), (count, depth))


def _permuted(g, x):
    count = x.shape[0]
    kind = g.choose("gather", "slice", "parts", "none")
    if kind == "gather":
        return g.value("Gather", x.shape, x, g.rng.permutation(count), axis=1)
    if kind == "slice":
        return g.value("Slice", x.shape, x, *(np.array([number]) for number in (-1, -(1 << 31), 1, -1)))
    return g.grow(x, "permuted_parts") if kind == "parts" else x


@block(1, 2, share=2)
def lookup(g, x):
    """Rows of a table, in any order, joined with the tensor: concatenated, added, or gated by it."""
    found = _permuted(g, looked_up(g))
    count, depth = found.shape
    if g.chance(0.3):
        return _reduced(g, found, x)
    flat = g.reshaped(found, count * depth)
    if len(x.shape) == 2 and g.chance(0.5):
        made = g.value("MatMul", (count, x.shape[1]), found, g.weights(depth, x.shape[1], inputs=depth))
        return g.value("Concat", (count + x.shape[0], x.shape[1]), *g.either_order(x, made), axis=1)
    last = x.shape[-1]
    made = g.value("MatMul", (last,), flat, g.weights(count * depth, last, inputs=count * depth))
    if len(x.shape) == 2:
        made = g.value("Unsqueeze", (1, last), made, np.array([1]))
    return g.value(g.choose("Add", "Mul"), x.shape, x, made)


def _reduced(g, found, x):
    made = g.summed(found, [1], g.choose("ReduceMean", "ReduceMax", "ReduceSum"), keep=False)
    flat = g.reshaped(x, int(np.prod(x.shape)))
    other = g.value("MatMul", made.shape, flat, g.weights(flat.shape[0], made.shape[0], inputs=flat.shape[0]))
    return g.value("Add", made.shape, made, other)

"""The text of a lowered step or network: a line for each matrix, and a line for each sum with its products and results."""

from ...functions.functions import NONE
from .sums import MatrixSum

__all__ = ["sums_text"]


def sums_text(lowered):
    """Returns the text of a :class:`.Lowered`."""
    matrices = {(one.name, one.form): one for some in lowered.sums for one in (*some.reads, *some.writes)}
    return "\n".join([*map(_matrix, matrices.values()), *map(_sum, lowered.sums)])


def _matrix(matrix):
    axes = " ".join(f"{axis.of}{f'/{axis.every}' * (axis.every > 1)}*{axis.stride}" for axis in matrix.axes)
    kind = "binary32" if matrix.wide else "bfloat16"
    size = f"{matrix.rows} rows x {matrix.blocks} x {matrix.channels} channels"
    return f"matrix {matrix.name}: {matrix.form}, {kind}, {size}, {matrix.region.name}+{matrix.vector}, {axes}"


def _sum(one):
    if not isinstance(one, MatrixSum):
        return f"{type(one).__name__.lower()} {one.name}: {', '.join(matrix.name for matrix in one.reads)}"
    parts = [f"[{one.start.name}]"] if one.start else []
    for phase in one.phases:
        parts += [_product(product) for product in phase.products]
        parts += [f"-> {_result(result)}" for result in phase.results]
        parts += [f"-> update {phase.update.master.name}, {phase.update.momentum.name}"] if phase.update else []
    shape = f"{one.shape.rows} x {one.shape.blocks * one.shape.channels}"
    return f"sum {one.name}: {shape} = {' + '.join(parts).replace(' + ->', ' ->')}"


def _product(one):
    marks = [name for name in ("turned", "by_rows", "own") if getattr(one, name)]
    marks += [f"windows {'x'.join(map(str, one.window.kernel))}"] if one.window else []
    operands = [one.source and one.source.name, one.weights.name]
    return f"{one.kind}({' * '.join(filter(None, operands))}{''.join(f', {mark}' for mark in marks)})"


def _result(one):
    words = [f"pool {'x'.join(map(str, one.pool.window))}"] if one.pool else []
    words += [str(one.function)] if one.function != NONE else []
    words += ["softmax" if one.softmax is True else str(one.softmax)] * bool(one.softmax) + ["index"] * one.index
    words += [f"times {one.times.name}"] if one.times else []
    words += [f"where {one.select.name}"] if one.select else []
    return " ".join([*words, one.matrix.name])

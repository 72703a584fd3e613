"""Biases that differ from position to position, such as masks and positions: bias rows, or one stage for each bias."""

from dataclasses import replace
from itertools import product

import numpy as np

from .errors import ModelError

__all__ = ["moved", "rectangles", "regions", "split_bias_rows"]

_MOST_REGIONS = 1024  # largest number of stages in place of one


def regions(arrays, title):
    """Returns the :func:`rectangles` of arrays. Raises ModelError with the `title` of the node if there are too many."""
    found = rectangles(arrays)
    if len(found) > _MOST_REGIONS:
        raise ModelError(
            f"{title}: its constant has more than {_MOST_REGIONS} regions with different values; place it next to a dense layer, "
            "which can absorb it, or use a core with attention"
        )
    return found


def rectangles(arrays):
    """Returns the rectangles ((top, bottom), (left, right)) of a grid in which arrays (y, x, channel) are constant along y and x.
    None stands for an array that does not limit them."""
    edges = [_edges(arrays, axis) for axis in (0, 1)]
    return list(product(*(zip(ends, ends[1:]) for ends in edges)))


def _edges(arrays, axis):
    """Returns the indices along an axis at which arrays (y, x, channel) change, and both ends of the axis."""
    changes = [0, next(array.shape[axis] for array in arrays if array is not None)]
    for array in arrays:
        if array is not None:
            rest = tuple({0, 1, 2} - {axis})
            changes += (np.flatnonzero((np.diff(array, axis=axis) != 0).any(axis=rest)) + 1).tolist()
    return sorted(set(changes))


def split_bias_rows(graph):
    """Returns the graph with stages of one bias each in place of each stage with bias rows. No bit changes.

    Raises ModelError if a stage has too many different biases."""
    if not any(map(graph.has_bias_rows, graph.stages)):
        return graph
    made, names = graph.copied(), {stage.name for stage in graph.stages}
    made.stages = []
    for stage in graph.stages:
        made.stages += _parts(made, stage, names) if graph.has_bias_rows(stage) else [stage]
    return made


def _parts(made, stage, names):
    """Yields the stages of one bias each. `names` are the names of stages so far."""
    bias = made.constants[stage.start]
    rectangles = regions([bias], stage.title or stage.name)
    for number, ((top, bottom), (left, right)) in enumerate(rectangles, 1):
        name = stage.name if number == 1 else _unused(f"{stage.name}_{number}", names)
        names.add(name)
        yield replace(
            stage,
            name=name,
            size=(bottom - top, right - left),
            origin=(stage.origin[0] + top, stage.origin[1] + left),
            terms=tuple(moved(term, top, left) for term in stage.terms),
            start=made.constant(f"{name}.bias", bias[top : top + 1, left : left + 1]),
            value=stage.value if number == len(rectangles) else None,
        )


def _unused(name, names):
    while name in names:
        name += "_"
    return name


def moved(term, top, left):
    """Returns the term of the sums from row `top` and column `left` on."""
    (stride_y, stride_x), (above, before) = term.stride, term.padding
    return replace(term, padding=(above - top * stride_y, before - left * stride_x))

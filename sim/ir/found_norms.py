"""Normalizations in a graph of the compiler: three stages that are differentiated as one node."""

import numpy as np
from ml_dtypes import bfloat16

from ..functions.functions import NONE, Function

__all__ = ["mean_parts", "norms_in"]


def mean_parts(channels):
    """Returns the weights of a mean over channels: 1 / channels, truncated to bfloat16, and the rounded rest, unless it is 0. The
    reader of ONNX files divides the weights of a mean in the same way."""
    share = np.array([1 / channels], np.float32)
    upper = (share.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    lower = (share - upper).astype(bfloat16)
    return [float(part[0]) for part in (upper, lower) if part[0]]


def norms_in(graph):
    """Returns {number of stage y: (numbers of the stages of the square and of the root, epsilon)} of a graph.

    For a tensor c, the square is c c, the root is 1 / sqrt(mean of the square over the channels + epsilon), and y is c times the
    root. No other stage reads the square or the root.
    """
    writers = {stage.output: number for number, stage in enumerate(graph.stages)}
    found = {}
    for number, stage in enumerate(graph.stages):
        root = writers.get(stage.times)
        if root is None or not _scales_by_one(graph, stage):
            continue
        square = _square_of(graph, writers, graph.stages[root], stage.terms[0].source)
        if square is None or _readers(graph, stage.times) > 1:
            continue
        if _readers(graph, graph.stages[square].output) == len(graph.stages[root].terms):
            found[number] = (square, root), float(graph.constants[graph.stages[root].start].item())
    return found


def _readers(graph, name):
    return sum(stage.operands.count(name) for stage in graph.stages)


def _scales_by_one(graph, stage):
    (term, *others), plain = stage.terms, stage.function == NONE and not (stage.softmax or stage.pool or stage.start)
    shape = graph.tensors[term.source].shape
    same = shape == (*stage.size, graph.channels(stage)) and term.groups == shape[-1] and term.kernel == term.stride == (1, 1)
    return not others and plain and term.fixed and not term.copies and same and bool((graph.constants[term.weights] == 1).all())


def _square_of(graph, writers, root, source):
    """Returns the number of the stage of the square, if `root` is the inverse root of the mean square of a tensor."""
    channels, squared = graph.tensors[source].channels, root.terms[0].source
    start = graph.constants.get(root.start)
    if root.function != Function("inverse_root") or root.times or start is None or start.size != 1:
        return None
    parts = mean_parts(channels)
    if len(parts) != len(root.terms) or not all(_is_sum(graph, *pair, squared, channels) for pair in zip(root.terms, parts)):
        return None
    number = writers.get(squared)
    if number is None:
        return None
    square = graph.stages[number]
    is_square = square.times == source and _scales_by_one(graph, square)
    return number if is_square and square.terms[0].source == source else None


def _is_sum(graph, term, weight, source, channels):
    plain = term.fixed and not term.copies and term.kernel == (1, 1)
    plain = plain and graph.tensors[term.weights].shape == (1, channels, 1)
    return plain and term.source == source and bool((graph.constants[term.weights] == weight).all())

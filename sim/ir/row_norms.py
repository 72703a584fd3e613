"""Normalizations that a core with `normalize` computes by NORMALIZE. The bits differ from the bits of products, so the golden
model and the compiler must take the same graph. A trained network remembers which, as :attr:`.Graph.normalize`."""

from dataclasses import replace

import numpy as np

from ..functions.functions import NONE
from .found_norms import norms_in
from .reshapes import without_reshapes
from .stage import Norm

__all__ = ["for_training_on", "norm_of_sums", "with_row_norms"]


def for_training_on(network, config):
    """Returns a network with parameters, which is trained by steps for a core: with NORMALIZE, if the core has it."""
    return replace(network, normalize=config.normalize and bool(norms_in(without_reshapes(network))))


def with_row_norms(graph, core):
    """Returns the graph for a core: with one stage for each normalization that the core computes by NORMALIZE. `core` has
    `normalize`: a Config, or a trained network."""
    found = norms_in(graph) if core.normalize and not graph.parameters else {}
    stages, writers = list(graph.stages), {stage.output: stage for stage in graph.stages}
    for number, (others, epsilon) in found.items():
        norm, _, sums = norm_of_sums(graph, writers, stages[number], Norm(epsilon, False))
        stages[number] = replace(stages[number], times=None, softmax=norm, **sums)
        for other in others:
            stages[other] = None
    return _without_unread(graph, stages) if found else graph


def norm_of_sums(graph, writers, stage, norm):
    """Returns `(norm, factor, fields)` of the NORMALIZE of a stage, whose only term reads the numerator of `norm`, or x if it is
    centred. The numerator is (x - mean x) times `factor`. `fields` are the terms and the start of its sums: of the sums of x,
    before their rounding, if a stage computes them."""
    source, factor = stage.terms[0].source, 1
    if not norm.centred:
        found, factor = _centred(graph, writers, source)
        source, norm = found or source, Norm(norm.epsilon / factor**2, found is not None)
    writer = writers.get(source)
    if writer is not None and _is_sum(graph, writer) and writer.size == stage.size:
        return norm, factor, {"terms": writer.terms, "start": writer.start}
    return norm, factor, {"terms": (replace(stage.terms[0], source=source),)}


def _is_sum(graph, stage):
    """Returns True if the output of a stage is a rounded sum, at all positions."""
    plain = stage.function == NONE and not (stage.softmax or stage.pool or stage.times or stage.select or stage.ring)
    return plain and not graph.is_part(stage) and not graph.tensors[stage.output].wide


def _centred(graph, writers, name):
    """Returns (x, factor) if a tensor is (x - mean of x over the channels) times a factor. Otherwise returns (None, 1)."""
    stage = writers.get(name)
    source = stage.terms[0].source if stage is not None and stage.terms else None
    matrix = None if source is None else _matrix(graph, writers, name, source)
    if matrix is None:
        return None, 1
    channels, unit = len(matrix), -matrix[0, -1]
    factor = channels * unit
    is_centred = factor > 0 and channels > 1 and np.allclose(matrix, factor * np.eye(channels) - unit, rtol=0, atol=unit * 1e-3)
    return (source, factor) if is_centred else (None, 1)


def _matrix(graph, writers, name, source):
    """Returns the matrix (channels of the source, channels) by which a tensor depends on `source`, position by position. Returns
    None if it depends on other tensors, or in another way."""
    if name == source:
        return np.eye(graph.tensors[name].channels)
    stage, total = writers.get(name), 0
    if stage is None or stage.start or not _is_sum(graph, stage):
        return None
    for term in stage.terms:
        kernel, before = graph.kernel(term), _matrix(graph, writers, term.source, source)
        if kernel is None or before is None or term.copies or (term.kernel, term.stride) != ((1, 1), (1, 1)) or not term.fixed:
            return None
        weights = kernel[0, 0].astype(np.float64)
        if term.groups == graph.tensors[name].channels > 1:
            weights = np.diag(np.broadcast_to(weights[0], term.groups))
        elif term.groups != 1:
            return None
        total = total + before @ weights
    return total


def _without_unread(graph, stages):
    """Returns the graph with these stages, without the stages and constants that nobody reads. None is left out. Tensors of
    samples stay, as each belongs to a node of the model."""
    kept, read = [], set(graph.outputs)
    for stage in reversed(stages):
        if stage is not None and stage.output in read:
            kept.insert(0, stage)
            read |= {*stage.operands}
    constants = {name: values for name, values in graph.constants.items() if name in read}
    tensors = {name: one for name, one in graph.tensors.items() if one.samples or name in read}
    return replace(graph, stages=kept, constants=constants, tensors=tensors)

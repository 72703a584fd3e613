"""Reshapes in a network: copies of all positions of a tensor, in the same order, to a tensor of another height and width. Without
copies, both names stand for one tensor."""

from dataclasses import replace

import numpy as np

from ..functions.functions import NONE
from .strided_copies import places_of

__all__ = ["without_reshapes"]


def without_reshapes(graph):
    """Returns the graph without copies. Sums have only positions that a result depends on."""
    names, sizes = _reshapes_in(graph)
    made = graph.copied()
    for name, (height, width) in sizes.items():
        made.tensors[name] = replace(graph.tensors[name], height=height, width=width)
    for name in names:
        del made.tensors[name]
    made.stages = [_reshaped(graph, made, stage, names, sizes) for stage in graph.stages if stage.output not in names]
    return made


def _reshaped(graph, made, stage, names, sizes):
    size = stage.size
    if size != (1, 1) and not graph.is_part(stage):
        size = sizes.get(stage.output, stage.sums_size)
    if size != stage.size and graph.has_bias_rows(stage):
        _resize(made, stage.start, size)
    terms = []
    for term in stage.terms:
        source, weights = (names.get(name, name) for name in (term.source, term.weights))
        kernel = term.kernel if term.kernel == (1, 1) else sizes.get(source, sizes.get(term.source, term.kernel))
        terms.append(replace(term, source=source, weights=weights, kernel=kernel))
    times = names.get(stage.times, stage.times)
    return replace(stage, terms=tuple(terms), size=size, pool=stage.pool and _within(stage.pool, size), times=times)


def _resize(made, name, size):
    """Gives bias rows another height and width."""
    made.tensors[name] = replace(made.tensors[name], height=size[0], width=size[1])
    if name in made.constants:
        made.constants[name] = made.constants[name].reshape(*size, -1)
    else:
        one = made.parameters[name]
        made.parameters[name] = replace(one, initial=one.initial.reshape(*size, -1))


def _within(pool, size):
    """Returns a :class:`.Pool` whose only window along an axis, without padding, is not larger than the `size` of the sums."""
    window = tuple(
        min(want, (have - 1) // dilation + 1) if count == 1 and not padding else want
        for want, have, count, dilation, padding in zip(pool.window, size, pool.size, pool.dilation, pool.padding)
    )
    return replace(pool, window=window)


def _reshapes_in(graph):
    """Returns `({copy: tensor that its readers read instead}, {tensor: its new (height, width)})` of a network. Both are empty if
    a tensor would need two sizes."""
    writers, names, wanted = {}, {}, []
    for stage in graph.stages:
        writers.setdefault(stage.output, []).append(stage)
    for name, stages in writers.items():
        source = _copied(graph, name, stages) if len(stages) > 1 or any(term.copies for term in stages[0].terms) else None
        if source is None:
            continue
        names[name] = names.get(source, source)
        copy, one = graph.tensors[name], graph.tensors[source]
        size = (copy.height, copy.width) if one.height == 1 else (one.height, one.width)
        wanted += [(tensor, size) for tensor in (name, source)]
    sizes = _spread(graph, wanted, names)
    outside = {*graph.outputs, *graph.input_names}
    if sizes is None or outside & sizes.keys():
        return {}, {}
    return names, {name: size for name, size in sizes.items() if size != graph.tensors[name].shape[:2]}


def _copied(graph, name, stages):
    tensor, source = graph.tensors[name], graph.tensors[stages[0].terms[0].source]
    if source.shape == tensor.shape or source.channels != tensor.channels or name in graph.outputs:
        return None
    if stages[0].terms[0].copies:
        have, size = (one.height * one.width * one.channels for one in (source, tensor))
        same = _is_plain(stages[0]) and np.array_equal(places_of(stages[0].terms[0].copies, size), np.arange(have))
        return source.name if same and len(stages) == 1 else None
    places = np.full((tensor.height, tensor.width), -1)
    for stage in stages:
        if not _is_copy(graph, stage) or stage.terms[0].source != source.name:
            return None
        (term,), (top, left), (height, width) = stage.terms, stage.origin, stage.size
        y, x = (np.arange(count) * by - before for count, by, before in zip(stage.size, term.stride, term.padding))
        if min(y.min(), x.min()) < 0 or y.max() >= source.height or x.max() >= source.width:
            return None
        places[top : top + height, left : left + width] = y[:, None] * source.width + x
    return source.name if np.array_equal(places.reshape(-1), np.arange(source.height * source.width)) else None


def _is_copy(graph, stage):
    term = stage.terms[0]
    diagonal = term.fixed and not term.copies and term.kernel == (1, 1) and term.groups == graph.channels(stage)
    return _is_plain(stage) and diagonal and bool((graph.constants[term.weights] == 1).all())


def _is_plain(stage):
    return len(stage.terms) == 1 and not (stage.start or stage.pool or stage.softmax or stage.times) and stage.function == NONE


def _spread(graph, wanted, copies):
    """Returns the sizes of all tensors whose positions belong to those of tensors of given sizes. Returns None if a tensor would
    get two sizes, or if a stage reads positions of such a tensor beside each other."""
    sizes, left = {}, list(wanted)
    while left:
        name, size = left.pop()
        if sizes.setdefault(name, size) != size:
            return None
        have = graph.tensors[name].shape[:2]
        for stage in (one for one in graph.stages if have != size and one.output not in copies):
            read = {one for one in stage.operands if graph.tensors[one].samples}
            if name not in read | {stage.output}:
                continue
            others = {term.source for term in stage.terms} | {stage.times, stage.output}
            if stage.size != have and name not in others:
                continue  # as weights of its own, any tensor has a row for each position
            if graph.is_part(stage):
                return None
            if stage.size != (1, 1) and (stage.size != have or stage.pool):
                return None
            if not all(_keeps(graph, term, stage) for term in stage.terms):
                return None
            together = {one for one in read | {stage.output} if graph.tensors[one].shape[:2] == have}
            left += [(one, size) for one in together if one not in sizes]
    return sizes


def _keeps(graph, term, stage):
    source = graph.tensors[term.source]
    if term.lanes:
        return False
    whole = stage.size == (1, 1) and term.kernel == (source.height, source.width) and term.dilation == (1, 1)
    return (whole or term.kernel == term.stride == (1, 1)) and term.padding == (0, 0)

"""Reshapes in a network: copies of all positions of a tensor, in the same order, to a tensor of another height and width. Without
copies, both names stand for one tensor."""

from dataclasses import dataclass, field, replace

import numpy as np

from ..functions.functions import NONE

__all__ = ["reshapes_in", "without_reshapes"]


@dataclass(frozen=True)
class Reshapes:
    """The reshapes of a graph."""

    names: dict = field(default_factory=dict)  # Dict of str to str. {copy: tensor that the copy's readers read}.
    stages: frozenset = frozenset()  # numbers of the stages that write copies
    #: Dict of str to (int, int). Height and width of tensors, where a step differs from the graph.
    sizes: dict = field(default_factory=dict)

    def name(self, tensor):
        """Returns the tensor that a step has in place of a graph's tensor."""
        while tensor in self.names:
            tensor = self.names[tensor]
        return tensor


def without_reshapes(graph):
    """Returns the graph without copies. Sums have only positions that a result depends on."""
    found, made = reshapes_in(graph), graph.copied()
    for name, (height, width) in found.sizes.items():
        made.tensors[name] = replace(graph.tensors[name], height=height, width=width)
    for name in found.names:
        del made.tensors[name]
    stages = enumerate(graph.stages)
    made.stages = [_reshaped(graph, made, stage, found) for number, stage in stages if number not in found.stages]
    return made


def _reshaped(graph, made, stage, found):
    size = stage.size
    if size != (1, 1) and not graph.is_part(stage):
        size = found.sizes.get(stage.output, stage.sums_size)
    if size != stage.size and graph.has_bias_rows(stage):
        _resize(made, stage.start, size)
    terms = []
    for term in stage.terms:
        source = found.name(term.source)
        kernel = term.kernel if term.kernel == (1, 1) else found.sizes.get(source, term.kernel)
        terms.append(replace(term, source=source, weights=found.name(term.weights), kernel=kernel))
    pool, times = stage.pool and _within(stage.pool, size), stage.times and found.name(stage.times)
    return replace(stage, terms=tuple(terms), size=size, pool=pool, times=times)


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


def reshapes_in(graph):
    """Returns the :class:`Reshapes` of a network. It has none if a tensor would need two sizes."""
    writers = {}
    for number, stage in enumerate(graph.stages):
        writers.setdefault(stage.output, []).append(number)
    names, dropped, wanted = {}, set(), []
    for name, numbers in writers.items():
        source = _copied(graph, name, [graph.stages[number] for number in numbers]) if len(numbers) > 1 else None
        if source is None:
            continue
        names[name] = source
        dropped |= {*numbers}
        copy, one = graph.tensors[name], graph.tensors[source]
        size = (copy.height, copy.width) if one.height == 1 else (one.height, one.width)
        wanted += [(tensor, size) for tensor in (name, source)]
    sizes = _spread(graph, wanted, dropped)
    outside = {*graph.outputs, *graph.input_names}
    return Reshapes() if sizes is None or outside & sizes.keys() else Reshapes(names, frozenset(dropped), sizes)


def _copied(graph, name, stages):
    tensor, source = graph.tensors[name], graph.tensors[stages[0].terms[0].source]
    if source.shape == tensor.shape or source.channels != tensor.channels or name in graph.outputs:
        return None
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
    plain = not (stage.start or stage.pool or stage.softmax or stage.times) and stage.function == NONE
    diagonal = term.fixed and term.kernel == (1, 1) and term.groups == graph.channels(stage)
    return len(stage.terms) == 1 and plain and diagonal and bool((graph.constants[term.weights] == 1).all())


def _spread(graph, wanted, dropped):
    """Returns the sizes of all tensors whose positions belong to those of tensors of given sizes. Returns None if a tensor would
    get two sizes, or if a stage reads positions of such a tensor beside each other."""
    sizes, left = {}, list(wanted)
    while left:
        name, size = left.pop()
        if sizes.setdefault(name, size) != size:
            return None
        have = graph.tensors[name].shape[:2]
        for stage in (one for number, one in enumerate(graph.stages) if have != size and number not in dropped):
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

"""Reshapes in a graph of the compiler: copies of all positions of a tensor, in the same order, to a tensor of another height and
width. A training step has no copies: both names stand for one tensor."""

from dataclasses import dataclass, field

import numpy as np

from ..functions.functions import NONE

__all__ = ["Reshapes", "is_part", "is_repeated", "reshapes_in"]


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

    def size(self, tensor):
        """Returns the (height, width) of a :class:`sim.ir.graph.Tensor`."""
        return self.sizes.get(tensor.name, (tensor.height, tensor.width))


def is_part(graph, stage):
    """Returns True if a stage writes only some positions of its output."""
    return stage.result_size != graph.tensors[stage.output].shape[:2]


def is_repeated(stage):
    """Returns True if a stage has sums of one position, and writes its result to several positions."""
    return stage.pool is not None and stage.size == (1, 1) != stage.pool.size


def reshapes_in(graph):
    """Returns the :class:`Reshapes` of a :class:`sim.ir.graph.Graph`. It has none if a tensor would need two sizes."""
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
        if not _is_copy(stage) or stage.terms[0].source != source.name:
            return None
        (term,), (top, left), (height, width) = stage.terms, stage.origin, stage.size
        y, x = (np.arange(count) * by - before for count, by, before in zip(stage.size, term.stride, term.padding))
        if min(y.min(), x.min()) < 0 or y.max() >= source.height or x.max() >= source.width:
            return None
        places[top : top + height, left : left + width] = y[:, None] * source.width + x
    return source.name if np.array_equal(places.reshape(-1), np.arange(source.height * source.width)) else None


def _is_copy(stage):
    term = stage.terms[0]
    plain = stage.bias is None and not (stage.pool or stage.softmax or stage.times or stage.reflow) and stage.function == NONE
    diagonal = term.fixed and term.kernel == (1, 1) and term.groups == stage.channels and term.data is None
    return len(stage.terms) == 1 and plain and diagonal and bool((term.weights == 1).all())


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
            read = {one for term in stage.terms for one in (term.source, term.data) if one} | ({stage.times} - {None})
            if name not in read | {stage.output}:
                continue
            others = {term.source for term in stage.terms} | {stage.times, stage.output}
            if stage.size != have and name not in others:
                continue  # as weights of its own, any tensor has a row for each position
            if is_part(graph, stage):
                return None
            if stage.size != (1, 1) and (stage.size != have or stage.pool):
                return None
            if any(not _keeps(graph, term, stage) for term in stage.terms):
                return None
            together = {one for one in read | {stage.output} if graph.tensors[one].shape[:2] == have}
            left += [(one, size) for one in together if one not in sizes]
    return sizes


def _keeps(graph, term, stage):
    source = graph.tensors[term.source]
    whole = stage.size == (1, 1) and term.kernel == (source.height, source.width) and term.dilation == (1, 1)
    return (whole or term.kernel == term.stride == (1, 1)) and term.padding == (0, 0)

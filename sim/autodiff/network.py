"""The form of a network that has gradients: each stage writes a whole tensor, windows of pooling are side by side, and a
normalization is one stage."""

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np

from ..functions.functions import NONE
from ..ir.errors import ModelError
from ..ir.found_norms import norms_in
from ..ir.reshapes import without_reshapes
from ..ir.stage import Norm, Pool, Stage, Term
from ..ir.strided_copies import strided_copies
from .stages import filled, identity

__all__ = ["step_network"]


def step_network(graph, masked=()):
    """Returns the network of a training step, whose stages have gradients.

    Parameters
    ----------
    graph : Graph
    masked : sequence of int
        Numbers of stages whose results are multiplied by a mask. The masks are inputs of the network, in this order.

    Raises
    ------
    ModelError
        If a pass of :mod:`sim.compiler.passes.pipeline` has changed the graph to a form that a step does not have.
    """
    _check_form(graph)
    maker = _StepNetwork(without_reshapes(graph))
    for number in masked:
        maker.add_mask(graph, number)
    for number, stage in enumerate(maker.graph.stages):
        maker.add(number, stage)
    return maker.network


def _check_form(graph):
    for stage in graph.stages:
        lanes = graph.tensors[stage.times].channels if stage.times else 1
        turned = [term.source for term in stage.terms if term.lanes]
        if turned or lanes not in (1, graph.channels(stage)):
            form = f"reads {turned[0]!r} transposed" if turned else f"has {lanes} lanes in its factor"
            raise ModelError(f"stage {stage.name!r}: it {form}, which a step cannot have; give it the graph before the passes")


class _StepNetwork:
    """Adds the stages of a graph to a network in the forms that have gradients.

    If several stages write parts of one tensor, each part is a tensor of its own. The sum of all parts, with +0 around each part,
    is the whole tensor.

    Members
    -------
    masks : dict of str to str
        {name of a stage: its mask}.
    writers : Counter of str
        Number of stages that are not added yet, for each tensor that they write.
    parts : dict of str to list of Term
        Terms of the sum of a tensor's parts, for the parts so far.
    """

    def __init__(self, graph):
        self.graph, self.network = graph, graph.copied()
        self.network.stages = []
        self.writers = Counter(stage.output for stage in graph.stages)
        self.parts, self.masks = {}, {}
        self.norms = norms_in(graph) if graph.parameters else {}  # the forward pass has the stages of the graph
        self.left_out = {number for numbers, _ in self.norms.values() for number in numbers}

    def add_mask(self, given, number):
        """Adds the mask of stage `number` of the given graph."""
        stage, kept = given.stages[number], {stage.name: stage for stage in self.graph.stages}
        shape = (*kept.get(stage.name, stage).result_size, given.channels(stage))
        self.masks[stage.name] = self.network.add_input(f"mask {number}", shape, is_mask=True)

    def add(self, number, stage):
        network = self.network
        self.writers[stage.output] -= 1
        if number in self.left_out:
            network.tensors.pop(stage.output, None)
            return
        made, channels = replace(stage, name="", origin=(0, 0)), self.graph.channels(stage)
        if stage.is_repeated:
            made = _repeated(network, made, channels)
        elif made.pool and not made.pool.is_apart(made.size):
            made = _pooled(network, made, channels)
        made = replace(made, terms=tuple(_at_all_positions(network, term, made.size) for term in made.terms))
        if number in self.norms:
            made = replace(made, times=None, norm=Norm(self.norms[number][1], centred=False))
        made = self._masked(stage, made, channels)
        if self.graph.is_part(stage):
            self._add_part(stage, made, channels)
            return
        network.stages.append(made)
        if stage.function != NONE or stage.softmax:  # rounded, as its readers need it
            network.tensors[stage.output] = replace(network.tensors[stage.output], wide=False)

    def _masked(self, stage, made, channels):
        """Returns a stage with its mask, if it has one. A stage has one product, so another product precedes it."""
        if stage.name not in self.masks:
            return made
        if stage.times:
            before = replace(made, output=f"{made.output}, before dropout")
            made = Stage(made.output, (), made.result_size, self.network.add_stage(before, channels))
        return replace(made, times=self.masks[stage.name])

    def _add_part(self, stage, made, channels):
        """Adds a part of a tensor. The last one is followed by the sum."""
        network, parts = self.network, self.parts.setdefault(stage.output, [])
        if self._is_copied(made):
            parts += [replace(term, padding=stage.origin) for term in made.terms]
        else:
            name = network.add_stage(replace(made, output=f"{stage.output}, part {len(parts)}"), channels)
            ones = filled(network, 1, 1, channels)
            parts.append(Term(name, ones, padding=stage.origin, groups=channels))
        if not self.writers[stage.output]:
            tensor = network.tensors[stage.output]
            network.stages.append(Stage(stage.output, tuple(parts), (tensor.height, tensor.width)))

    def _is_copied(self, made):
        """Returns True if a stage's terms read the same positions of whole tensors, so that they can be terms of a sum of
        parts."""
        sources = (self.network.tensors[term.source] for term in made.terms)
        plain = Stage(made.output, made.terms, made.size) == made
        return plain and all(
            (one.height, one.width) == made.size and Term(one.name, term.weights, groups=term.groups) == term
            for one, term in zip(sources, made.terms)
        )


def _at_all_positions(network, term, size):
    """Returns a term that reads one position for all sums, as a term of a copy of this position at all positions."""
    if 0 not in term.stride:
        return term
    channels = network.tensors[term.source].channels
    copies = strided_copies(np.tile(np.arange(channels), prod(size)))
    copied = Stage(f"{term.source}, at all positions", (Term(term.source, filled(network, 1), copies=copies),), size)
    return replace(term, source=network.add_stage(copied, channels), stride=(1, 1))


def _repeated(network, made, channels):
    """Adds a stage with the result at one position. Returns a stage that copies the result to all positions of `made.pool`: each
    sum has one product, by 1."""
    height, width = size = made.pool.size
    first = network.add_stage(replace(made, output=f"{made.output}, at one position", pool=None, times=None), channels)
    ones = filled(network, 1, 1, channels, height * width)
    return Stage(
        made.output, (Term(first, ones, size, padding=(height - 1, width - 1), groups=channels),), size, times=made.times
    )


def _pooled(network, made, channels):
    """Adds a stage with the sums before pooling. Returns a stage that pools a copy with the windows side by side."""
    sums = replace(made, output=f"{made.output}, before pooling", pool=None, function=NONE, times=None)
    copied, pool = network.add_stage(sums, channels), made.pool
    for axis in range(2):
        copied = _with_windows_apart(network, copied, pool, axis)
    tensor = network.tensors[copied]
    fields = {"pool": Pool(pool.window, pool.size, pool.window), "function": made.function, "times": made.times}
    return Stage(made.output, (identity(network, copied),), (tensor.height, tensor.width), **fields)


def _with_windows_apart(network, source, pool, axis):
    """Adds a copy of a tensor whose windows along an axis are side by side. Each position of a window is a copy at the stride of
    the windows, with +0 outside of the tensor. Returns the name of the copy."""
    tensor, window, count = network.tensors[source], pool.window[axis], pool.size[axis]
    ones = filled(network, 1, 1, tensor.channels)

    def along(value, other=1):
        return (value, other) if axis == 0 else (other, value)

    def add(output, terms, length):
        size = along(length, (tensor.width, tensor.height)[axis])
        return network.add_stage(Stage(f"{source}, {output}", tuple(terms), size), tensor.channels)

    terms = []
    for place in range(window):
        before = along(pool.padding[axis] - place * pool.dilation[axis], 0)
        term = Term(source, ones, stride=along(pool.stride[axis]), padding=before, groups=tensor.channels)
        part = add(f"position {place} of windows along {'yx'[axis]}", [term], count)
        terms.append(Term(part, ones, padding=along(place, 0), groups=tensor.channels, apart=along(window)))
    return add(f"windows along {'yx'[axis]}", terms, count * window)

"""The stages of a network as a :class:`sim.ir.step.StepGraph` without state, as the core computes them: stages write parts of
tensors, and windows of pooling may overlap."""

from dataclasses import replace
from math import prod

import numpy as np

from ...autodiff.reshapes import is_part, reshapes_in
from ...autodiff.stages import constant
from ...golden.arithmetic import bfloat16
from ...ir.step import StepGraph, StepStage, StepTensor, StepTerm
from .forms import NotMatrices

__all__ = ["network_of"]


def network_of(graph):
    """Returns the :class:`sim.ir.step.StepGraph` of a graph after all passes. Raises NotMatrices."""
    made = _Network(graph)
    for number, stage in enumerate(graph.stages):
        if number not in made.reshapes.stages:
            made.add(stage)
    return made.network


class _Network:
    """Adds the stages of a graph to a network.

    Members
    -------
    network : StepGraph
    reshapes : Reshapes
    """

    def __init__(self, graph):
        self.graph, self.reshapes = graph, reshapes_in(graph)
        wide = {stage.output for stage in graph.stages if graph.is_wide(stage)}
        tensors = {}
        for name, one in graph.tensors.items():
            height, width = self.reshapes.size(one)
            tensors[name] = StepTensor(name, one.channels, height, width, wide=name in wide)
        for name in wide:
            if any(name == term.source for stage in graph.stages for term in stage.terms):
                raise NotMatrices(f"{graph.name}: its output {name!r} is also read inside the network, which is not supported")
        self.network = StepGraph(tensors, inputs=tuple(one.tensor.name for one in graph.gathers), output=graph.output)

    def add(self, stage):
        network, reshapes = self.network, self.reshapes
        terms = tuple(self._term(stage, term) for term in stage.terms)
        part, whole = is_part(self.graph, stage), self.graph.tensors[stage.output].shape[:2]
        size = stage.size if stage.size == (1, 1) or part else reshapes.sizes.get(stage.output, stage.sums_size)
        if any(term.lanes and term.groups == 1 for term in terms):
            size = whole
        if across := next((len(term.blocks) for term in terms if term.blocks), 0):
            size = size[0] // across, across
            network.tensors[stage.output] = replace(network.tensors[stage.output], height=size[0], width=across)
        start = None
        if stage.bias is not None:
            bias = stage.bias.reshape(*size, -1) if stage.has_bias_rows else stage.bias.reshape(1, 1, -1)
            start = constant(network, f"{stage.name}.bias", bias)
        times = stage.times and reshapes.name(stage.times)
        fields = {
            "name": stage.name,
            "function": stage.function,
            "softmax": stage.softmax,
            "times": times,
            "origin": stage.origin,
        }
        network.stages.append(StepStage(stage.output, terms, size, start, stage.pool and _within(stage.pool, size), **fields))

    def _term(self, stage, term):
        source = self.reshapes.name(term.source)
        kernel = term.kernel
        if kernel != (1, 1) and source in self.reshapes.sizes:
            kernel = self.reshapes.sizes[source]
        windows = kernel, term.stride, term.dilation, term.padding
        if term.data is not None:
            return StepTerm(source, self.reshapes.name(term.data), *windows, swapped=not term.rows)
        if view := self.graph.tensors[source].view:
            return self._transposed(stage, term, view)
        is_depthwise = term.groups == term.weights.shape[3] and term.weights.shape[2] == 1
        weights = term.weights if is_depthwise else _dense(term)
        name = constant(self.network, f"{stage.name}.weights", weights.reshape(prod(term.kernel), *weights.shape[2:]))
        return StepTerm(source, name, *windows, term.groups if is_depthwise else 1)

    def _transposed(self, stage, term, view):
        width, weights = self.graph.tensors[view.of].width, term.weights.reshape(prod(term.kernel), *term.weights.shape[2:])
        windows, lanes = (term.stride, term.dilation, term.padding), stage.size[1]
        blocks: tuple = ()
        if term.groups > 1:
            blocks, lanes = ((0, 0),), view.rows * width
        if view.step:
            across, lanes = self.graph.tensors[term.source].height // self.graph.tensors[view.of].height, width
            windows = (1, 1), (term.dilation[0] // across, 1), (term.padding[0] // across, 0)
            made = [_clipped(weights, view, width, number * view.step - view.before) for number in range(across)]
            kinds = {one.tobytes(): one for _, one in made}
            blocks = tuple((first, [*kinds].index(one.tobytes())) for first, one in made)
            weights = np.concatenate([*kinds.values()])
        name = constant(self.network, f"{stage.name}.weights", weights)
        return StepTerm(view.of, name, term.kernel, *windows, term.groups, lanes=lanes, blocks=blocks)


def _within(pool, size):
    """Returns a :class:`.Pool` whose only window along an axis, without padding, is not larger than the `size` of the sums."""
    window = tuple(
        min(want, (have - 1) // dilation + 1) if count == 1 and not padding else want
        for want, have, count, dilation, padding in zip(pool.window, size, pool.size, pool.dilation, pool.padding)
    )
    return replace(pool, window=window)


def _clipped(weights, view, width, first):
    """Returns `(first position, weights)` of a vector of a line with `width` positions that began at position `first`. The vector
    is moved into the line. The weights of positions outside the line are -0."""
    lanes = weights.shape[1]
    start = min(max(first, 0), width - lanes)
    moved, positions = np.full_like(weights, -0.0), np.arange(first, first + lanes)
    there = (positions >= 0) & (positions < width)
    moved[:, positions[there] - start] = weights[:, there]
    return start, moved


def _dense(term):
    """Returns weights (ky, kx, channels of the source, channels of the result). Between groups they are -0: adding x * -0 changes
    no sum."""
    if term.groups == 1:
        return term.weights
    inputs, outputs = term.weights.shape[2], term.weights.shape[3] // term.groups
    dense = np.full((*term.kernel, inputs * term.groups, term.weights.shape[3]), -0.0, bfloat16)
    for group in range(term.groups):
        own = slice(group * outputs, (group + 1) * outputs)
        dense[:, :, group * inputs : (group + 1) * inputs, own] = term.weights[..., own]
    return dense

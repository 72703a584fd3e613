"""The stages of a network as a :class:`sim.ir.step.StepGraph` without state, as the core computes them: stages write parts of
tensors, and windows of pooling may overlap."""

from dataclasses import replace
from math import prod

import numpy as np

from ...autodiff.network import Network
from ...autodiff.reshapes import reshapes_in
from ...autodiff.stages import constant
from ...golden.arithmetic import bfloat16
from ...ir.step import StepTerm

__all__ = ["network_of"]


def network_of(graph):
    """Returns the :class:`sim.ir.step.StepGraph` of a graph after some passes, or all."""
    made = _Network(graph, reshapes_in(graph), graph.input_names)
    left_out = made.reshapes.stages
    made.network.stages = [made.stage(number, stage) for number, stage in enumerate(graph.stages) if number not in left_out]
    return made.network


class _Network(Network):
    """The stages of a graph, with transposed sources. Weights have no groups, except of depthwise convolutions."""

    def size(self, stage, terms):
        network = self.network
        lines = any(term.lanes and term.groups == 1 for term in terms)
        size = self.graph.tensors[stage.output].shape[:2] if lines else super().size(stage, terms)
        if across := next((len(term.blocks) for term in terms if term.blocks), 0):
            size = size[0] // across, across
            network.tensors[stage.output] = replace(network.tensors[stage.output], height=size[0], width=across)
        return size

    def term(self, number, stage, place):
        term = stage.terms[place]
        view = self.graph.tensors[self.reshapes.name(term.source)].view
        return self._transposed(stage, term, view) if view and not term.data else super().term(number, stage, place)

    def constant_weights(self, stage, term):
        is_depthwise = term.groups == term.weights.shape[3] and term.weights.shape[2] == 1
        return super().constant_weights(stage, term if is_depthwise else replace(term, weights=_dense(term), groups=1))

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

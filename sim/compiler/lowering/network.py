"""The graph of a network as the core computes it: without reshapes, and without groups, except of depthwise convolutions."""

from dataclasses import replace

from ...ir.reshapes import without_reshapes
from ..passes.array_passes import dense

__all__ = ["network_of"]


def network_of(graph):
    """Returns the graph that is lowered, from a graph after the passes."""
    made = without_reshapes(graph)
    made.stages = [replace(stage, terms=tuple(_dense(made, term) for term in stage.terms)) for stage in made.stages]
    return made


def _dense(made, term):
    weights = made.constants.get(term.weights)
    is_depthwise = weights is not None and term.groups == weights.shape[2] and weights.shape[1] == 1
    if weights is None or term.groups == 1 or term.lanes or is_depthwise:
        return term
    name = made.constant(f"{term.weights}, of all channels", dense(weights, term.groups))
    return replace(term, weights=name, groups=1)

"""Weights of groups as weights of all channels.

Constants are -0 outside of the groups: adding x * -0 changes no sum. For trained weights, a stage of the step replaces
numbers outside of the groups by +0 before they are read.
"""

from dataclasses import replace

import numpy as np

from ...autodiff.stages import identity
from ...golden.arithmetic import bfloat16
from ...ir.stage import Select, Stage
from ...ir.tiles import dense
from .folding import family_of

__all__ = ["packed", "ungrouped", "without_groups"]


def packed(values, groups):
    """Inverts :func:`.dense`."""
    positions, inputs, outputs = values.shape
    parts = values.reshape(positions, groups, inputs // groups, groups, outputs // groups)
    return np.stack([parts[:, one, :, one] for one in range(groups)], axis=2).reshape(positions, inputs // groups, outputs)


def ungrouped(folded):
    """Returns the :class:`.Folded` step without groups of trained weights."""
    step = folded.step
    groups = _grouped(step)
    if not groups:
        return folded
    made, of_all = step.copied(), {}
    for name, count in groups.items():
        of_all |= dict.fromkeys(family_of(step, {name}), count)
    for name, count in of_all.items():
        tensor = step.tensors[name]
        made.tensors[name] = replace(tensor, width=count * tensor.width)
    parameters = {
        name: replace(one, initial=dense(one.initial, groups[name])) for name, one in step.parameters.items() if name in groups
    }
    made.parameters, made.stages, images, masks = step.parameters | parameters, [], {}, {}
    for name, count in groups.items():
        mask = dense(np.ones(step.tensors[name].shape, np.float32), count).astype(bfloat16)
        mask, tensor = made.constant(f"groups of {name}", mask), made.tensors[name]
        masks |= {step.gradients[name]: Select(mask)} if "norm" in step.factors else {}
        images[name] = image = made.free_name(f"{name}, in groups")
        made.tensors[image] = replace(tensor, name=image, wide=False)
        made.stages.append(Stage(image, (identity(made, name),), tensor.shape[:2], select=Select(mask)))
    for stage in step.stages:
        own = stage.output in of_all
        terms = tuple(_term(term, images, own) for term in stage.terms)
        if stage.start in masks and not (terms or stage.times):  # the norm has no numbers outside of the groups
            stage = replace(stage, select=masks[stage.start])
        made.stages.append(replace(stage, terms=terms, size=made.tensors[stage.output].shape[:2] if own else stage.size))
    return replace(folded, step=made, groups=of_all)


def without_groups(graph):
    """Returns the graph with constant weights of all channels, except of depthwise convolutions."""
    made = graph.copied()
    made.stages = [replace(stage, terms=tuple(_of_all(made, term) for term in stage.terms)) for stage in made.stages]
    return made


def _of_all(made, term):
    weights = made.constants.get(term.weights)
    is_depthwise = weights is not None and term.groups == weights.shape[2] and weights.shape[1] == 1
    if weights is None or term.groups == 1 or term.lanes or is_depthwise:
        return term
    name = made.constant(f"{term.weights}, of all channels", dense(weights, term.groups, -0.0))
    return replace(term, weights=name, groups=1)


def _grouped(step):
    """Returns {parameter: groups} of the trained weights that have groups, but are no diagonals."""
    found = {}
    for stage in step.stages:
        channels = step.tensors[stage.output].channels
        for term in stage.terms:
            if term.groups > 1 and term.weights in step.parameters and not step.is_diagonal(term, (*stage.size, channels)):
                found[term.weights] = term.groups
    return found


def _term(term, images, is_own):
    if term.weights in images:
        return replace(term, weights=images[term.weights], groups=1)
    return replace(term, groups=1) if is_own and term.transposed else term

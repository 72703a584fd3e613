"""The weights and the bias of a convolution of gathered windows as one parameter, with the bias in row 0 and the weights of an
input in each other row.

The host writes the windows a second time: transposed, with a row of ones. One product then sums the gradients of weights and
bias. Its operands need no transposition in the array. One run of sums updates both.
"""

from dataclasses import replace

import numpy as np

from ...ir.graph import Parameter
from .folding import Folded, family_of

__all__ = ["stacked"]


def stacked(folded):
    """Returns the :class:`.Folded` step with stacked parameters, where weights and bias have the same updates."""
    for name in folded.step.parameters:
        if pair := _pair(folded, name):
            folded = _stacked(folded, *pair)
    return folded


def _pair(folded, weights):
    """Returns the names of weights and bias, and {tensor of the weights: tensor of the bias} of their updates."""
    step = folded.step
    gathered = {name for entries in folded.inputs.values() for name, term, _ in entries if term is not None}
    readers = [stage for stage in step.stages for term in stage.terms if term.weights == weights]
    sums, starts = {stage.sums for stage in readers}, {stage.start for stage in readers}
    if len(sums) != 1 or not starts <= step.parameters.keys() or any(stage.ring for stage in step.stages):
        return None
    (bias,), used = starts, [term for term in readers[0].terms if term.weights == weights]
    shapes = [step.tensors[name].shape for name in (weights, bias)]
    if len(used) > 1 or used[0].source not in gathered or readers[0].size == (1, 1) or shapes[1] != (1, 1, shapes[0][2]):
        return None
    families = family_of(step, {weights}), family_of(step, {bias})
    chains = [[stage for stage in step.stages if stage.output in family] for family in families]
    others = [stage for stage in step.stages if not any(stage in chain for chain in chains)]
    beside = {name for stage in others for name in stage.operands} & (families[0] | families[1])
    if families[0] & families[1] or beside != {weights, bias} or [one for one in others if one.start == bias] != readers:
        return None
    names = _matched(step, chains, used[0].source)
    return names and (weights, bias, names)


def _matched(step, chains, source):
    """Returns {tensor of the weights: tensor of the bias} of two chains of stages that only differ in their first stage, which
    sums the gradient. Returns None if they differ elsewhere."""
    (first, *updates), (other, *others) = chains
    if len(updates) != len(others) or len(first.terms) != 1 or len(other.terms) != 1 or first.start or other.start:
        return None
    (term,), (total,) = first.terms, other.terms
    ones = step.constants.get(total.source)
    if not (term.transposed and total.transposed) or term.source != source or term.weights != total.weights:
        return None
    if ones is None or ones.shape != (1, 1, 1) or ones != 1:
        return None
    names = {one.output: same.output for one, same in zip(*chains)}
    for one, same in zip(updates, others):
        names |= {mine: its for mine, its in [(one.start, same.start), *zip(_sources(one), _sources(same))] if mine != its}
    return names if all(_renamed(one, names, same.size) == same for one, same in zip(updates, others)) else None


def _sources(stage):
    return [term.source for term in stage.terms]


def _renamed(stage, names, size):
    terms = tuple(replace(term, source=names.get(term.source, term.source)) for term in stage.terms)
    start, times = names.get(stage.start, stage.start), names.get(stage.times, stage.times)
    return replace(stage, output=names[stage.output], terms=terms, size=size, start=start, times=times)


def _stacked(folded, weights, bias, names):
    """Returns the step in which weights and bias are one parameter. `names` is as in :func:`_matched`."""
    step, made = folded.step, folded.step.copied()
    rows, made.stages = step.tensors[weights].width + 1, []
    whole = {name: made.free_name(f"{name}, with bias") for name in family_of(step, {weights})}
    for name, other in whole.items():
        made.tensors[other] = replace(step.tensors[name], name=other, width=rows)
    gradient = next(stage for stage in step.stages if stage.output == step.gradients[weights])
    source, inputs = _with_ones(folded, made, gradient.terms[0].source)
    for stage in step.stages:
        if stage.output in whole:
            stage = _renamed(stage, whole, (1, rows))
            if stage.output == whole[gradient.output]:
                stage = replace(stage, terms=(replace(gradient.terms[0], source=source),))
        if stage.output not in names.values():
            made.stages.append(stage)
    one, other = whole[weights], [step.parameters[name] for name in (bias, weights)]
    initial = np.concatenate([parameter.initial for parameter in other], axis=1)
    made.parameters = {name: kept for name, kept in step.parameters.items() if name not in (weights, bias)}
    made.parameters[one] = Parameter(initial, other[1].decays)
    made.masters, made.gradients = step.masters | {one: one}, step.gradients | {one: whole[gradient.output]}
    made.slots = step.slots | {one: {slot: whole[name] for slot, name in step.slots[weights].items()}}
    for kept in (made.masters, made.slots, made.gradients):
        del kept[weights], kept[bias]
    made.state, views = {}, dict(folded.views)
    biases = {other: name for name, other in names.items()}
    for name, after in step.state.items():
        if name in whole:
            made.state[whole[name]], views[name] = whole[after], (whole[name], 1)
        elif name in biases:
            views[name] = whole[biases[name]], 0
        else:
            made.state[name] = after
    return Folded(made, inputs, views, folded.stacks | {*whole.values()}, folded.transposed | {source})


def _with_ones(folded, made, source):
    """Adds the input of transposed windows with ones. Returns its name, and the inputs as in :class:`.Folded`."""
    tensor = made.tensors[source]
    name = made.free_name(f"{source}, transposed")
    made.tensors[name], made.inputs = replace(tensor, name=name, channels=tensor.channels + 1), (*made.inputs, name)
    inputs = {one: [*entries] for one, entries in folded.inputs.items()}
    for entries in inputs.values():
        entries += [(name, term, size) for one, term, size in entries if one == source]
    return name, inputs

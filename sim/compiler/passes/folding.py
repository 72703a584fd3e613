"""im2col for convolutions that read an input: the host gathers the values of each window into the channels of
one position, in the order of the sums. No bit changes. The weights, their gradients and their optimizer state have the gathered
channels as inputs."""

from dataclasses import dataclass, field, replace

import numpy as np

from ...golden.windows import patches
from ...ir.graph import Graph
from ...ir.stage import Tensor, Term
from ...ir.tiles import saves_tiles

__all__ = ["Folded", "family_of", "fold"]


@dataclass(frozen=True)
class Folded:
    """A step after im2col."""

    step: Graph
    #: Dict of str to list of (str, Term or None, (int, int)). For each input of the step before: inputs that the host makes of
    #: it, the term whose windows it gathers (None: a copy), and the size of the sums.
    inputs: dict
    views: dict = field(default_factory=dict)  # {tensor of weights or of a bias: (tensor of `stacks`, first row)}
    stacks: frozenset = frozenset()  # tensors of weights and bias together; see :mod:`sim.compiler.passes.stacking`
    transposed: frozenset = frozenset()  # inputs with a row for each channel; channel 0 is 1
    #: Groups of the tensors that the host stores for all channels; see :mod:`sim.compiler.passes.ungrouping`.
    groups: dict = field(default_factory=dict)

    def gathered(self, name, values):
        """Yields `(input, values)` of all inputs that are made of an input with these values, (batch, height, width,
        channels)."""
        for one, term, size in self.inputs[name]:
            if term is not None:
                made = np.ascontiguousarray(patches(values, term, size)).reshape(len(values), *size, -1)
                if one in self.transposed:
                    made = np.concatenate([np.ones_like(made[..., :1]), made], axis=-1)
                yield one, made.reshape(len(values), *self.step.tensors[one].shape)
            else:
                yield one, values


def fold(step, n):
    """Returns the :class:`Folded` step. Terms that read an input are replaced where this saves tiles of n channels."""
    uses = {}
    for term in (term for stage in step.stages for term in stage.terms):
        uses.setdefault(term.weights, []).append(term)
    weights = step.parameters.keys() | step.constants.keys()
    chosen = {name for name, terms in uses.items() if name in weights and all(_saves(step, one, n) for one in terms)}
    if not chosen:
        return Folded(step, {name: [(name, None, None)] for name in step.inputs})
    made = step.copied()
    made.stages, folds = [], {}
    family = family_of(step, chosen & step.parameters.keys()) | chosen
    for name in family:
        tensor = step.tensors[name]
        made.tensors[name] = replace(tensor, height=1, width=tensor.height * tensor.width)
        if name in step.constants:
            made.constants[name] = step.constants[name].reshape(made.tensors[name].shape)
    for stage in step.stages:
        size = (1, stage.size[0] * stage.size[1]) if stage.output in family else stage.size
        terms = tuple(_term(made, folds, stage, term, chosen, family) for term in stage.terms)
        made.stages.append(replace(stage, size=size, terms=terms))
    for name in family & step.parameters.keys():
        initial = step.parameters[name].initial.reshape(made.tensors[name].shape)
        made.parameters[name] = replace(step.parameters[name], initial=initial)
    read = {name for stage in made.stages for name in stage.operands}
    inputs = {name: [(name, None, None)] if name in read else [] for name in step.inputs}
    for (source, *_), entry in folds.items():
        inputs[source].append(entry)
    made.inputs = tuple(one for entries in inputs.values() for one, *_ in entries)
    return Folded(made, inputs)


def _saves(step, term, n):
    plain = term.groups == 1 and not (term.swapped or term.transposed or term.lanes)
    return plain and term.source in step.inputs and saves_tiles(term.kernel, step.tensors[term.source].channels, n)


def family_of(step, parameters):
    """Returns the tensors that have the elements of these parameters: gradients, optimizer state, results between."""
    family, size = {*parameters}, 0
    for name in parameters:
        family |= {step.masters[name], step.gradients[name], *step.slots[name].values()}
    while len(family) > size:
        size = len(family)
        for stage in step.stages:
            if not (made := step.tensors[stage.output]).samples:
                linked = {stage.output, stage.start, stage.times, *(term.source for term in stage.terms)} - {None}
                tensors = ((name, step.tensors[name]) for name in linked)
                own = {name for name, one in tensors if stage.ring or one.shape == made.shape and not one.samples}
                family |= own if own & family else set()
    return family


def _term(made, folds, stage, term, chosen, family):
    """Returns the term of a stage, which reads a gathered input if it reads a chosen parameter or computes its gradient."""
    is_gradient = stage.output in family and term.transposed
    if not is_gradient and term.weights not in chosen:
        return term
    vectors = made.tensors[term.weights]
    size = (vectors.height, vectors.width) if is_gradient else stage.size
    windows = {"stride": term.stride, "dilation": term.dilation, "padding": term.padding}
    key = term.source, term.kernel, *windows.values(), size
    if key not in folds:
        channels = made.tensors[term.source].channels
        name = made.free_name(f"{term.source}, gathered {len(folds)}")
        made.tensors[name] = Tensor(name, term.kernel[0] * term.kernel[1] * channels, *size)
        folds[key] = name, Term(term.source, "", term.kernel, **windows), size
    plain = {"kernel": (1, 1), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0)}
    return replace(term, source=folds[key][0], **plain)

"""Normalization by the statistics of a batch: stages of the forward pass, one rule for the gradient, and running averages."""

from dataclasses import replace
from math import prod

import numpy as np
from ml_dtypes import bfloat16

from ..functions.functions import Function
from ..ir.found_norms import mean_parts
from ..ir.stage import ChannelNorm, Stage
from .stages import add_like, filled, identity, row_sum, scaled

__all__ = ["add_batch_norm", "add_batch_norm_gradient", "with_batch_norm", "with_running_averages"]

_LANES = 128  # of the largest array


def with_batch_norm(graph, weights, norm, mean, variance):
    """Returns the network in which the source of the term with these weights is normalized.

    Parameters
    ----------
    graph : Graph
    weights : str
        Weights of one term.
    norm : ChannelNorm
        Its `mean` and `variance` are the names of new parameters.
    mean, variance : float array (channels,)
        First running averages.
    """
    made, channels = graph.copied(), len(mean)
    made.stages = []
    for name, values in ((norm.mean, -mean), (norm.variance, variance)):
        made.add_parameter(name, values.reshape(1, 1, channels), decays=False)
        made.parameters[name] = replace(made.parameters[name], is_average=True)
    for stage in graph.stages:
        used = [place for place, term in enumerate(stage.terms) if term.weights == weights]
        if used:
            (place,), terms = used, [*stage.terms]
            source = graph.tensors[terms[place].source]
            one = Stage(f"{norm.mean} of {source.name}", (identity(made, source.name),), source.shape[:2], norm=norm)
            terms[place] = replace(terms[place], source=made.add_stage(one, channels))
            stage = replace(stage, terms=tuple(terms))
        made.stages.append(stage)
    return made


def with_running_averages(graph):
    """Returns the network of inference: running averages, which are constants, normalize."""
    made = graph.copied()
    made.stages = []
    for stage in graph.stages:
        if isinstance(stage.norm, ChannelNorm) and stage.norm.mean in made.constants:
            mean, variance = (made.constants[name].astype(np.float64) for name in (stage.norm.mean, stage.norm.variance))
            root = (1 / np.sqrt(np.maximum(variance, 0) + stage.norm.epsilon)).astype(np.float32).astype(bfloat16)
            weights = made.constant(f"root of {stage.norm.variance}", root)
            start = made.constant(f"start of {stage.norm.mean}", (mean * root).astype(np.float32))
            (term,) = stage.terms
            stage = replace(stage, terms=(scaled(made, term.source, weights),), start=start, norm=None)
        made.stages.append(stage)
    return made


def _share(step, stage):
    """Returns the parts of 1 / (values of a channel in a batch)."""
    return mean_parts(stage.norm.count * prod(stage.size))


def _add_vector(step, name, channels, terms, wide=False, **fields):
    return step.add_stage(Stage(name, tuple(terms), **fields), channels, samples=False, wide=wide)


def _add_total(step, source, cores):
    """Adds the sums over the samples of all cores, and over the positions."""
    channels, name = step.tensors[source].channels, f"{source}, total"
    total = _add_vector(step, name, channels, (row_sum(step, source),), wide=True)
    return _add_vector(step, f"{total}, sum of cores", channels, (), True, start=total, ring="all_reduce") if cores > 1 else total


def add_batch_norm(step, stage, cores):
    """Adds the stages of a normalization by the statistics of the batch. The mean is divided by the number of values in two
    parts, because a term reads the upper half of a sum."""
    (term,), name, channels = stage.terms, stage.output, step.tensors[stage.output].channels
    total = _add_total(step, term.source, cores)
    rest = _add_vector(step, f"{total}, rest", channels, (scaled(step, total, filled(step, -1)),), start=total)
    terms = [scaled(step, one, filled(step, -part)) for one in (total, rest) for part in _share(step, stage)]
    mean = _add_vector(step, f"{name}, minus mean", channels, terms, wide=True)
    centred = add_like(step, name, f"{name}, centred", (identity(step, term.source),), start=mean)
    square = add_like(step, name, f"{name}, square", (), start=centred, times=centred)
    squares = _add_total(step, square, cores)
    lanes = -(-channels // _LANES) * _LANES  # lanes without a channel have a finite root, too
    epsilon = step.constant(f"epsilon {stage.norm.epsilon:g} x {lanes}", np.full((1, 1, lanes), stage.norm.epsilon, np.float32))
    terms = [scaled(step, squares, filled(step, part)) for part in _share(step, stage)]
    root = _add_vector(step, f"{name}, root", channels, terms, start=epsilon, function=Function("inverse_root"))
    step.stages.append(Stage(name, (scaled(step, centred, root),), stage.size))
    _add_running_averages(step, stage, mean, squares)


def _add_running_averages(step, stage, mean, squares):
    norm, values = stage.norm, stage.norm.count * prod(stage.size)
    for name, statistic, share in ((norm.mean, mean, 1), (norm.variance, squares, 1 / max(1, values - norm.unbiased))):
        terms = (scaled(step, name, filled(step, -norm.momentum)), scaled(step, statistic, filled(step, norm.momentum * share)))
        step.masters[name], step.slots[name], step.gradients[name] = name, {}, statistic
        step.state[name] = add_like(step, name, f"{name}, next", terms, start=name, wide=True)


def add_batch_norm_gradient(step, stage, terms, cores):
    """Adds the gradient of a normalization's source, `(g - mean g - y mean(g y)) gain root`, for the result y and the gradient g
    of the only reader, `gain y`. `terms` has its term. Returns the name of the added gradient."""
    (term,), name, channels = terms, stage.output, step.tensors[stage.output].channels
    root = next(one.terms[0].weights for one in step.stages if one.output == name)
    root = _add_vector(step, f"gradient of {name}, root", channels, (), start=term.weights, times=root)
    gradient, product, less = term.source, f"{term.source} * {name}", []
    if product not in step.tensors:  # the product of the gradient of the gain
        add_like(step, name, product, (), start=gradient, times=name)
    for source in (gradient, product):
        total = _add_total(step, source, cores)
        parts = [scaled(step, total, filled(step, -part)) for part in _share(step, stage)]
        less.append(_add_vector(step, f"{source}, minus mean", channels, parts, times=root))
    start = _add_vector(step, f"gradient of {name}, start", channels, (identity(step, less[0]),), wide=True)
    return add_like(step, name, f"gradient of {name}", (scaled(step, gradient, root), scaled(step, name, less[1])), start=start)

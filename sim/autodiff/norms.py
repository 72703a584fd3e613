"""Normalization over the channels, LayerNorm and RMSNorm: stages of the forward pass, and one rule for the gradient."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..functions.functions import Function
from ..ir.found_norms import mean_parts
from ..ir.row_norms import norm_of_sums
from ..ir.stage import Stage, Term
from .stages import add_like, filled, identity

__all__ = ["add_norm", "add_norm_gradient"]


def _centring(step, source, channels):
    values = (np.eye(channels, dtype=np.float32) - np.float32(1 / channels)).astype(bfloat16)
    return Term(source, step.constant(f"centring {channels}", values[None]))


def _mean(step, source, channels):
    return tuple(Term(source, filled(step, part, channels, 1)) for part in mean_parts(channels))


def _numerator(step, stage):
    (term,) = stage.terms
    if stage.norm.centred:
        return _centring(step, term.source, step.tensors[stage.output].channels)
    return identity(step, term.source)


def add_norm(step, stage):
    """Adds the stages of a normalization: the numerator c, its square, the inverse root of the mean square, and c times the
    root. With `normalize`, two NORMALIZE of the same sums compute the root, in each channel, and the result."""
    name, channels = stage.output, step.tensors[stage.output].channels
    if step.normalize:
        writers = {one.output: one for one in step.stages}
        norm, factor, sums = norm_of_sums(step, writers, stage, stage.norm)
        step.add_stage(Stage(f"{name}, root", size=stage.size, softmax=replace(norm, root_by=factor), **sums), channels)
        step.stages.append(Stage(name, size=stage.size, softmax=norm, **sums))
        return
    terms = (_numerator(step, stage),)
    numerator = add_like(step, name, f"{name}, numerator", terms) if stage.norm.centred else stage.terms[0].source
    square = add_like(step, name, f"{name}, square", (), start=numerator, times=numerator)
    epsilon = step.constant(f"epsilon {stage.norm.epsilon:g}", np.full((1, 1, 1), stage.norm.epsilon, np.float32))
    root = Stage(f"{name}, root", _mean(step, square, channels), stage.size, epsilon, function=Function("inverse_root"))
    step.stages.append(Stage(name, terms, stage.size, times=step.add_stage(root, 1)))


def add_norm_gradient(step, stage, terms):
    """Adds the gradient of a normalization's source, `(g - mean g - y mean(g y)) root`, for the result y and its gradient g.
    `terms` are the terms of g. Without centring, the mean of g is not subtracted. Returns the name of the added gradient."""
    name, channels = stage.output, step.tensors[stage.output].channels
    number, made = next((number, made) for number, made in enumerate(step.stages) if made.output == name)
    root = made.times or step.stages[number - 1].output
    gradient = add_like(step, name, f"gradient of {name}, g", terms)
    product = add_like(step, name, f"gradient of {name}, g y", (), start=gradient, times=name)
    mean = step.add_stage(Stage(f"gradient of {name}, mean g y", _mean(step, product, channels), stage.size), 1)
    part = add_like(step, name, f"gradient of {name}, y mean g y", (), start=name, times=mean)
    first = _centring(step, gradient, channels) if stage.norm.centred else identity(step, gradient)
    less = Term(part, filled(step, -1), groups=channels)
    return add_like(step, name, f"gradient of {name}", (first, less), times=root)

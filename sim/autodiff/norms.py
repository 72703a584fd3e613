"""Normalization over the channels, LayerNorm and RMSNorm: stages of the forward pass, and one rule for the gradient."""

import numpy as np
from ml_dtypes import bfloat16

from ..ir.inverse_root import InverseRoot
from ..ir.optimizers import TABLE_BINADES, TABLE_MIDDLE
from ..ir.step import StepStage, StepTerm
from .stages import add_like, constant, filled, identity

__all__ = ["add_norm", "add_norm_gradient"]


def _root_name(stage):
    return f"{stage.output}, root"


def _centring(step, source, channels):
    """Returns the term of a tensor less its mean over the channels."""
    values = (np.eye(channels, dtype=np.float32) - np.float32(1 / channels)).astype(bfloat16)
    return StepTerm(source, constant(step, f"centring {channels}", values[None]))


def _numerator(step, stage):
    (term,) = stage.terms
    if stage.norm.centred:
        return _centring(step, term.source, step.tensors[stage.output].channels)
    return identity(step, term.source)


def add_norm(step, stage):
    """Adds the stages of a normalization: the numerator c, its square, two lookups of the inverse root, and c times the root.

    The lookups are Adam's, see :class:`sim.ir.optimizers.Adam`: together they cover 28 binades of variances.
    """
    name, channels = stage.output, step.tensors[stage.output].channels
    terms = (_numerator(step, stage),)
    numerator = add_like(step, name, f"{name}, numerator", terms)
    square = add_like(step, name, f"{name}, square", terms, times=numerator)
    lookups = []
    for scale in (TABLE_MIDDLE, -TABLE_MIDDLE * 2.0**-TABLE_BINADES):
        epsilon = np.float32(stage.norm.epsilon * scale)
        epsilon = constant(step, f"epsilon {epsilon:g}", np.full((1, 1, 1), epsilon))
        mean = StepTerm(square, filled(step, scale / channels, channels, 1))
        output = f"{name}, lookup {len(lookups) + 1}"
        lookups.append(step.add_stage(StepStage(output, (mean,), stage.size, epsilon, function=InverseRoot()), 1))
    root = StepStage(_root_name(stage), (), stage.size, lookups[0], times=lookups[1])
    root = step.add_stage(root, 1)
    step.stages.append(StepStage(name, terms, stage.size, times=root))


def add_norm_gradient(step, stage, terms):
    """Adds the gradient of a normalization's source, `(g - mean g - y mean(g y)) root` for the result y and its gradient g, given
    by its terms; returns its name. Without centring, the mean of g is not subtracted."""
    name, channels = stage.output, step.tensors[stage.output].channels
    gradient = add_like(step, name, f"gradient of {name}, g", terms)
    product = add_like(step, name, f"gradient of {name}, g y", (), start=gradient, times=name)
    mean = StepStage(f"gradient of {name}, mean g y", (StepTerm(product, filled(step, 1 / channels, channels, 1)),), stage.size)
    mean = step.add_stage(mean, 1)
    part = add_like(step, name, f"gradient of {name}, y mean g y", (), start=name, times=mean)
    first = _centring(step, gradient, channels) if stage.norm.centred else identity(step, gradient)
    less = StepTerm(part, filled(step, -1), groups=channels)
    return add_like(step, name, f"gradient of {name}", (first, less), times=_root_name(stage))

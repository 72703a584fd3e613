"""The multiplications of a training step."""

from math import prod

import numpy as np

from .stage import reads

__all__ = ["step_macs"]


def step_macs(step):
    """Returns the multiplications that a :class:`sim.ir.graph.Graph` needs for one sample: products with parameters, products
    of two results, products with frozen weights, and gradients. Padding, factors, means and sums of biases do not count."""
    terms = {(stage.sums, place): (stage, term) for stage in step.stages for place, term in enumerate(stage.terms)}
    return int(sum(_of_term(step, stage, term) for stage, term in terms.values()))


def _of_term(step, stage, term):
    source, weights, output = (step.tensors[name] for name in (term.source, term.weights, stage.output))
    if _is_mean(step, term) or step.is_diagonal(term, (*stage.size, output.channels)):
        return 0
    if not output.samples:  # the gradient of weights; the vectors of all positions meet a source of one position
        positions = weights.shape[:2] if source.shape[:2] != (1, 1) else (1, 1)
        each = output.width * output.channels * (weights.height * weights.width // prod(positions))
        return reads(term, source, positions).sum() * each if weights.samples else 0
    if weights.samples:
        return prod(source.shape[:2] if term.transposed else stage.size) * source.channels * output.channels
    return reads(term, source, stage.size).sum() * weights.width * weights.channels


def _is_mean(step, term):
    """Returns True for a sum or a mean: a constant source, or constant weights of one number besides zeros."""
    weights = step.constants.get(term.weights)
    if weights is None or term.source in step.constants:
        return term.source in step.constants
    with np.errstate(invalid="ignore"):  # a comparison of a signalling NaN
        numbers = weights[weights != 0]
        return not numbers.size or bool((numbers == numbers[0]).all())

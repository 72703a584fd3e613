"""LayerNormalization, computed by dense layers and a division.

    c = N (x - mean(x)),   v = mean(c * c) + N^2 epsilon,   y = c / sqrt(v) * scale + bias

N is the number of values, divided by a power of two. Therefore, c is a single sum with exact weights. An offset that all values
of x have in common cancels in binary32, before any rounding to bfloat16.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap, identity
from ...ir.errors import ModelError
from ..index.values import SymbolicTensor, limited, show, whole
from ..index.views import arrangement, in_place
from ..registry import POOLS, operator
from .elementwise import affine, product
from .quotients import inverse_root

__all__ = []


@operator(
    "LayerNormalization",
    group=POOLS,
    on_constants=False,
    counts_from_end=True,
    attributes=("axis", "epsilon", "stash_type"),  # the last only affects rounding
)
def normalization(step, tensor):
    """Handles LayerNormalization over the last axes."""
    parameters = step.arguments[1:]
    if step.arguments[0] is not tensor or any(isinstance(value, SymbolicTensor) for value in parameters):
        raise ModelError(f"{step.title}: its scale and bias must be constant")
    rank = len(tensor.dims)
    axis = step.attributes.get("axis", -1) % rank if -rank <= step.attributes.get("axis", -1) < rank else None
    if axis is None or tensor.batch is not None and tensor.batch >= axis:
        raise ModelError(
            f"{step.title}: axis {step.attributes.get('axis', -1)} does not fit {show(tensor)}, or is before the batch"
        )
    if any(step.node.output[1:]):
        raise ModelError(f"{step.title}: its outputs Mean and InvStdDev are not supported; leave them out")
    dims, epsilon = tensor.dims, step.attributes.get("epsilon", 1e-5)
    if not 0 <= epsilon < np.inf:
        raise ModelError(f"{step.title}: its epsilon is {epsilon:g}; it must not be negative")
    for value in parameters:
        if value is not None and not _fits(value.shape, dims[axis:]):
            raise ModelError(
                f"{step.title}: its scale or bias of {show(value.shape)} does not fit {show(tensor)} from axis {axis} on"
            )
    result = _normalised(step, tensor.permuted(tensor.sample.reshape(*dims[:axis], -1)), max(epsilon, 0.0))
    result = result.permuted(result.sample.reshape(dims))
    scale, bias = (None if value is None else value.astype(np.float64) for value in (*parameters, None)[:2])
    return affine(step, result, scale=scale, shift=bias)


def _fits(shape, dims):
    """Returns True if a shape can be broadcast to `dims`."""
    return len(shape) <= len(dims) and all(size in (1, have) for size, have in zip(shape[::-1], dims[::-1]))


def _normalised(step, tensor, epsilon):
    """Returns the tensor normalised over its last axis: (x - mean) / sqrt(variance + epsilon)."""
    last = len(tensor.dims) - 1
    tensor, seen, roles = arrangement(step, tensor, last=last)
    source, count = seen.source, tensor.dims[last]
    if not seen.complete or prod(source.shape) != tensor.size:
        raise ModelError(f"{step.title}: the arrangement of its input's values is not supported")
    limited(step, count, count)
    unit = 2.0 ** -(count.bit_length() - 1)  # makes all weights of a sum exact
    own = replace(identity(source).taps[0], weights=np.full((1, 1, 1, count), count * unit), select=None)
    centred = _sums(step, source, np.full((count, count), -unit), (own,))
    index = in_place(whole(centred)[seen.channels], tensor.dims, roles)
    centred = tensor.of(centred, index)
    mean = _sums(step, product(step, centred, centred).source, np.full((count, 1), 1 / count))
    mean = tensor.of(mean, in_place(whole(mean), (*tensor.dims[:last], 1), roles))
    epsilon *= (count * unit) ** 2
    variance = affine(step, mean, shift=np.array(epsilon)) if epsilon else mean
    return product(step, centred, inverse_root(step, variance))


def _sums(step, source, weights, others=()):
    """Returns the node of a dense layer that is applied at each position of the node `source`. `weights` is (inputs, outputs);
    `others` are further taps of the sum."""
    size = source.shape[:2]
    taps = (*others, Tap(source, weights[None, None], exact=True))
    return Linear(**step.titles, shape=(*size, weights.shape[1]), parts=(SumRegion(taps, size),))

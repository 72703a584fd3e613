"""Normalisation operators of ONNX, and normalisations that a model writes in small operators.

Scale and bias are folded into the weights of the next layers where possible, except for training.
"""

import numpy as np

from ...ir.errors import ModelError
from ..formulas.norms import normalisation
from ..formulas.tensor_formulas import shape_of
from ..index.values import SymbolicTensor, show
from ..registry import POOLS, operator
from .elementwise import affine, trained_affine
from .norm_stages import normalised

__all__ = ["NORMALIZATIONS", "recognise_normalisation"]

NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization")


@operator(
    "LayerNormalization",
    "RMSNormalization",
    group=POOLS,
    on_constants=False,
    counts_from_end=True,
    attributes=("axis", "epsilon", "stash_type"),  # the last only affects rounding
)
def normalization(step, tensor):
    """Handles LayerNormalization and RMSNormalization over the last axes."""
    rank, axis = len(tensor.dims), step.attributes.get("axis", -1)
    first = axis % rank if -rank <= axis < rank else None
    if first is None or tensor.batch is not None and tensor.batch >= first:
        raise ModelError(f"{step.title}: axis {axis} does not fit {show(tensor)}, or is before the batch")
    if any(step.node.output[1:]):
        raise ModelError(f"{step.title}: its outputs Mean and InvStdDev are not supported; leave them out")
    scale, bias = _parameters(step, tensor)
    for value in (scale, bias):
        if value is not None and not _fits(value.shape, tensor.dims[first:]):
            raise ModelError(
                f"{step.title}: its scale or bias of {show(value.shape)} does not fit {show(tensor)} from axis {first} on"
            )
    if step.training and first < rank - 1:
        raise ModelError(
            f"{step.title}: it has a scale for each of several axes, which can't be trained; put a GroupNormalization with one "
            "group in its place"
        )
    result = normalised(step, tensor, range(first, rank), _epsilon(step), step.operator == "LayerNormalization")
    return scaled(step, result, scale, bias)


def _parameters(step, tensor):
    """Returns the constant scale and bias of a normalisation as float64 arrays. A parameter that is left out is None."""
    values = (*step.arguments[1:], None, None)[:2]
    if step.arguments[0] is not tensor or any(isinstance(value, SymbolicTensor) for value in values):
        raise ModelError(f"{step.title}: its scale and bias must be constant")
    return [None if value is None else value.astype(np.float64) for value in values]


def _epsilon(step):
    epsilon = step.attributes.get("epsilon", 1e-5)
    if not 0 <= epsilon < np.inf:
        raise ModelError(f"{step.title}: its epsilon is {epsilon:g}; it must not be negative")
    return epsilon


def _fits(shape, dims):
    return len(shape) <= len(dims) and all(size in (1, have) for size, have in zip(shape[::-1], dims[::-1]))


def scaled(step, tensor, scale, bias):
    """Returns `tensor * scale + bias`. If scale and bias have no effect, returns the tensor itself. For training, they are the
    weights of a stage."""
    if step.training and scale is not None and (made := trained_affine(step, tensor, scale, bias)):
        return made
    scale = None if scale is None or (scale == 1).all() else scale
    bias = None if bias is None or (bias == 0).all() else bias
    return tensor if scale is None and bias is None else affine(step, tensor, scale=scale, shift=bias)


@operator("InstanceNormalization", group=POOLS, on_constants=False, attributes=("epsilon",))
@operator("GroupNormalization", group=POOLS, on_constants=False, attributes=("epsilon", "num_groups", "stash_type"))
def group_normalization(step, tensor):
    """Handles InstanceNormalization and GroupNormalization of (batch, channels, ...)."""
    scale, bias = _parameters(step, tensor)
    if len(tensor.dims) < 3 or tensor.dims[0] != 1 or tensor.batch not in (0, None):
        raise ModelError(f"{step.title}: {show(tensor)} must be (batch, channels, ...) with at least three axes")
    channels = tensor.dims[1]
    groups = step.attributes.get("num_groups", channels)
    if groups < 1 or channels % groups:
        raise ModelError(f"{step.title}: its {channels} channels are not divided evenly by its num_groups of {groups}")
    if any(value.shape != (channels,) for value in (scale, bias)):
        raise ModelError(f"{step.title}: its scale and bias must have one axis of {channels} values")
    grouped = tensor.permuted(tensor.sample.reshape(1, groups, -1))
    result = normalised(step, grouped, (2,), _epsilon(step), centred=True)
    result = result.permuted(result.sample.reshape(tensor.dims))
    shape = (channels, *[1] * (len(tensor.dims) - 2))
    return scaled(step, result, scale.reshape(shape), bias.reshape(shape))


def recognise_normalisation(step, tensor):
    """Tries to express the result of a step as the normalisation of an earlier tensor. Returns the normalised earlier tensor.
    Returns None if there is no such tensor."""
    for root, formula in sorted(tensor.formulas.items(), key=lambda one: -one[1].depth):  # longest formula first
        found = normalisation(formula, shape_of(root)) if shape_of(root) == shape_of(tensor) else None
        if found:
            return normalised(step, root, *found)
    return None

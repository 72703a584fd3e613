"""Concat, also with constants, such as the class token of a vision transformer."""

from dataclasses import replace

import numpy as np

from ...ir.errors import ModelError
from ..batch import Repeated
from ..index.values import SymbolicTensor, show
from ..registry import SHAPES, operator
from .concatenation import concat
from .elementwise import affine
from .shapes import own_axis

__all__ = []


@operator("Concat", group=SHAPES, joins=True, attributes=("axis",))
def join(step, tensor):
    """Handles Concat. Constants are joined as zeros, to which one shift of the result then adds them. Zeros that are repeated for
    each sample may be a class token before its training, and have a shift, too."""
    axis = own_axis(step, tensor, step.attributes["axis"], "joins")
    constants = [None if isinstance(value, SymbolicTensor) else _of_sample(step, tensor, value) for value in step.arguments]
    parts = [
        value if constant is None else tensor.permuted(np.full(constant.shape, -1))
        for value, constant in zip(step.arguments, constants)
    ]
    given, step = step.arguments, replace(step, arguments=parts)
    is_token = any(isinstance(value, Repeated) and value.given for value in given)
    if not is_token and not any(constant is not None and constant.any() for constant in constants):
        return concat(step, tensor)
    shapes = {(one.batch, *np.delete(one.dims, axis)) for one in parts if len(one.dims) == len(tensor.dims)}
    if len(shapes) > 1 or any(len(one.dims) != len(tensor.dims) for one in parts):
        raise ModelError(f"{step.title}: shapes {', '.join(map(show, parts))} do not fit")
    if len({one.source for one in parts}) == 1:
        result = tensor.permuted(np.concatenate([one.sample for one in parts], axis=axis))
    else:
        result = concat(step, tensor)
    shifts = [np.zeros(one.dims) if constant is None else constant for one, constant in zip(parts, constants)]
    return affine(step, result, shift=np.concatenate(shifts, axis=axis))


def _of_sample(step, tensor, constant):
    """Returns the part of a constant in one sample, in binary64. All samples must have the same."""
    if isinstance(constant, Repeated):
        return constant.values.astype(np.float64)
    constant = constant.astype(np.float64)
    if tensor.batch is None or constant.ndim <= tensor.batch:
        return constant
    size = tensor.dims[tensor.batch]
    if constant.shape[tensor.batch] != size * (tensor.samples or 0):
        raise ModelError(
            f"{step.title}: shapes {show(tensor)} and {show(constant.shape)} do not fit: the constant has its own batch"
        )
    first = constant.take(range(size), axis=tensor.batch)
    if (np.concatenate([first] * tensor.samples, axis=tensor.batch) != constant).any():
        raise ModelError(f"{step.title}: joins a constant that differs from sample to sample, which is not supported")
    return first

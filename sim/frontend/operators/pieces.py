"""Operators on large joined tensors, slice by slice.

A Concat of tensors without a common arrangement only lists their nodes (:class:`sim.fusion.nodes.Joint`), such as the results of
a detector at three scales. Most operators would first copy all values into one vector, by as many weights as the product of both
sizes. Operators that treat the slices along an axis alike are applied to each slice instead, and the results are joined again.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Joint, Unknown
from ..index.narrow import narrowed
from ..index.values import SymbolicTensor
from ..registry import ELEMENTWISE, FUNCTIONS, OPERATORS
from .concatenation import concat

__all__ = ["in_slices"]

_MOST_WEIGHTS = 1 << 16  # of the copy into a vector; smaller tensors are copied
_MOST_CUTS = 64


def in_slices(step, handler):
    """Applies the handler of an operator to each slice of its joined operands. Returns the result. Returns None if no operand is
    large and joined, or if the operator does not treat slices alike."""
    tensors = [one for one in step.arguments if isinstance(one, SymbolicTensor)]
    joined = [] if any(map(_has_mask, tensors)) else [one for one in tensors if _is_large(one)]
    cuts = _cuts(step, joined)
    if not cuts:
        return None
    axis, places = cuts
    length, results = joined[0].dims[axis], []
    for first, end in zip([0, *places], [*places, length]):
        part = replace(step, arguments=[_slice(value, axis, length, first, end) for value in step.arguments])
        tensor = next(value for value in part.arguments if isinstance(value, SymbolicTensor))
        result = in_slices(part, handler) or _in_images(part, handler) or handler(part, tensor)
        if not isinstance(result, SymbolicTensor) or isinstance(result.source, Unknown) or _has_mask(result):
            return None
        results.append(result)
    inside = len(results[0].dims) + axis
    return concat(replace(step, arguments=results, attributes={"axis": inside}), results[0])


def _in_images(step, handler):
    """Applies a Softmax or Conv of channels to an operand (1, channels, rows, pixels of an image), row by row: each row gets the
    height and width of its node. Returns None for other operators and operands."""
    tensor = step.arguments[0]
    if step.operator not in ("Softmax", "Conv") or tensor.sample.ndim != 4 or isinstance(tensor.source, Joint):
        return None
    height, width, _ = tensor.source.shape
    batch, _, rows, pixels = tensor.dims
    axis = step.attributes.get("axis", -1) % 4 if step.operator == "Softmax" else 1
    if height * width != pixels or min(height, width) == 1 or axis != 1 or batch != 1:
        return None
    results = []
    for row in range(rows):
        image = narrowed(tensor.permuted(tensor.sample[:, :, row].reshape(1, -1, height, width)))
        result = handler(replace(step, arguments=[image, *step.arguments[1:]]), image)
        results.append(result.permuted(result.sample.reshape(1, -1, 1, pixels)))
    return concat(replace(step, arguments=results, attributes={"axis": 2}), results[0])


def _is_large(tensor):
    source = tensor.source
    return isinstance(source, Joint) and source.shape[2] * tensor.size > _MOST_WEIGHTS and (tensor.index >= 0).all()


def _has_mask(tensor):
    """Returns True if minus infinity is added to values of a tensor: a Concat does not keep it."""
    return tensor.low or tensor.guard is not None or bool((tensor.index < -1).any())


def _cuts(step, tensors):
    """Returns `(axis, places)`: between the places along this axis, which counts from the end, neighbouring values of the tensors
    come from one node each. Of several axes, the one with the fewest places is chosen. Returns None if there is no such axis."""
    found = []
    for axis in range(-max((len(one.dims) for one in tensors), default=0), 0):
        if all(-axis <= len(one.dims) and axis + len(one.dims) != one.batch for one in tensors) and _treats_alike(step, axis):
            if len({one.dims[axis] for one in tensors}) == 1:
                places = sorted({place for one in tensors for place in _changes(one, axis)})
                found += [(len(places), axis, places)] if 0 < len(places) <= _MOST_CUTS else []
    return min(found)[1:] if found else None


def _changes(tensor, axis):
    ends = np.cumsum([prod(source.shape) for source in tensor.source.sources])
    number = np.moveaxis(np.searchsorted(ends, tensor.sample, side="right"), axis, 0)
    return (np.flatnonzero(np.diff(number.reshape(len(number), -1), axis=0).any(axis=1)) + 1).tolist()


def _treats_alike(step, axis):
    """Returns True if slices of a result along an axis, which counts from the end, only depend on the same slices of operands."""
    rank, attributes = len(step.arguments[0].dims) if isinstance(step.arguments[0], SymbolicTensor) else 0, step.attributes
    if OPERATORS[step.operator].group in (ELEMENTWISE, FUNCTIONS):
        return step.operator not in ("BatchNormalization", "Scaler", "PRelu")
    if step.operator == "Softmax":
        return step.opset >= 13 and attributes.get("axis", -1) % rank != axis + rank
    if step.operator == "Conv":
        kernel = step.arguments[1].shape[2:] if isinstance(step.arguments[1], np.ndarray) else ()
        plain = max(kernel, default=2) == 1 and max(attributes.get("strides", [1])) == 1 and not any(attributes.get("pads", [0]))
        return plain and axis + rank > 1
    return False


def _slice(value, axis, length, first, end):
    """Returns the slice of an operand that is broadcast to `length` along an axis. Other operands stay as they are."""
    if isinstance(value, SymbolicTensor):
        if len(value.dims) < -axis or value.dims[axis] != length:
            return value
        return _from_one_node(value.permuted(value.sample.take(range(first, end), axis=axis)))
    is_whole = not isinstance(value, np.ndarray) or value.ndim < -axis or value.shape[axis] != length
    return value if is_whole else value.take(range(first, end), axis=axis)


def _from_one_node(tensor):
    tensor, first = replace(tensor, formulas={}, woven=False), 0
    for source in tensor.source.sources if isinstance(tensor.source, Joint) else ():
        if first <= tensor.index.min() and tensor.index.max() < first + prod(source.shape):
            return narrowed(replace(tensor, source=source, index=tensor.index - first))
        first += prod(source.shape)
    return tensor

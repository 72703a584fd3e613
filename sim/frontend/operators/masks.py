"""Masks: Where, logical operators on truth values, and Add of minus infinity.

A truth value of an input is the number 0 or 1. Minus infinity is never computed: where a constant mask adds it, the index map
marks the values (:func:`sim.frontend.index.values.hide`), and Softmax adds it to its own sums. Where an input decides, a large
negative number takes its place, and the tensor is `low`.
"""

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from ...functions.functions import RELU, Function
from ...fusion.nodes import Affine
from ...ir.errors import ModelError
from ..index.values import STAND_IN, SymbolicTensor, common, hidden, hide, revealed
from ..registry import ELEMENTWISE, operator
from .activations import apply_function
from .elementwise import added, affine, broadcast, in_range, product
from .expressions import unknown

__all__ = ["added_masks", "masked_sum", "truth_values"]

#: Constants down to this number behave like minus infinity in a Softmax: the exponential of their distance to a larger number is
#: 0, unless that number is in the last binade before minus infinity too.
_LOW = -(2.0**127)


@operator("IsNaN", group=ELEMENTWISE, counts_from_end=True)
def not_a_number(step, tensor):
    """Handles IsNaN of a Softmax, with which models replace the shares of rows that are masked completely."""
    if not tensor.shares:
        raise ModelError(f"{step.title}: is only supported for the result of Softmax; leave it out")
    _check_rows(step, tensor)
    if tensor.guard is None:  # constant masks leave a value in each row
        return np.zeros((1,) * len(tensor.dims), bool)
    return replace(tensor, integer=True, truth=True, undefined=True)


def _check_rows(step, *tensors):
    """Raises the error for values in the place of NaN that a constant mask causes. On the core, NaN times 0 is NaN."""
    if any(isinstance(tensor, SymbolicTensor) and tensor.emptied for tensor in tensors):
        raise ModelError(f"{step.title}: replaces NaN of rows that a constant mask hides completely; let the mask leave a value")


def _defined(step, condition, one, two):
    """Returns Where of :func:`not_a_number`: 0 in place of a share that is not a number, else the share. Shares of masked values
    are 0 in any other row, so 0 for all masked values has the same effect."""
    same = isinstance(two, SymbolicTensor) and two.source is condition.source and np.array_equal(two.index, condition.index)
    if not same or isinstance(one, SymbolicTensor) or np.any(one) or two.dims != condition.dims:
        raise ModelError(f"{step.title}: after IsNaN, only 0 in place of the Softmax itself is supported")
    return replace(product(step, replace(two, guard=None), condition.guard), guard=None)


def _number(step, tensor):
    """Returns truth values as numbers; refuses other values as a condition."""
    if not tensor.truth or tensor.undefined:
        raise ModelError(f"{step.title}: its conditions must be constant, or truth values of an input; cut the model before it")
    return replace(tensor, integer=False, truth=False)


def _truth(tensor):
    return replace(tensor, integer=True, truth=True)


@operator("Not", group=ELEMENTWISE, counts_from_end=True)
@operator("And", "Or", "Xor", group=ELEMENTWISE, joins=True, counts_from_end=True)
def logic(step, tensor):
    """Handles Not, And, Or and Xor of truth values of inputs."""
    if step.operator == "Not":
        return _truth(_inverted(step, _number(step, tensor)))
    tensors = [_number(step, value) for value in step.arguments if isinstance(value, SymbolicTensor)]
    constants = [value.astype(np.float64) for value in step.arguments if not isinstance(value, SymbolicTensor)]
    if step.operator == "And":
        return _truth(affine(step, tensors[0], scale=constants[0]) if constants else product(step, *tensors))
    if step.operator == "Xor":
        if constants:
            return _truth(affine(step, tensors[0], scale=1 - 2 * constants[0], shift=constants[0]))
        one, two = tensors
        return _truth(added(step, product(step, one, _inverted(step, two)), product(step, _inverted(step, one), two)))
    if constants:  # the function keeps its constant apart from those that follow, which would cancel it
        return _truth(apply_function(step, affine(step, tensors[0], scale=1 - constants[0], shift=constants[0]), RELU))
    return _truth(_inverted(step, product(step, *(_inverted(step, one) for one in tensors))))


def _inverted(step, tensor):
    """Returns 1 - x of truth values; twice, the values themselves."""
    node = tensor.source
    if isinstance(node, Affine) and node.scale is not None and node.shift is not None:
        if (node.scale == -1).all() and (node.shift == 1).all():
            return tensor.of(node.source)
    return affine(step, tensor, scale=np.array(-1.0), shift=np.array(1.0))


def truth_values(step, tensor):
    """Returns a Cast of integers to truth values, False for 0; None for any other operator."""
    if step.operator != "Cast" or step.attributes["to"] != TensorProto.BOOL or not tensor.integer:
        return None
    if tensor.truth:
        return tensor
    limited = apply_function(step, replace(tensor, integer=False), Function("clip", (-1.0, 1.0)))
    return _truth(product(step, limited, limited))


@operator("Where", group=ELEMENTWISE, joins=True, counts_from_end=True)
def where(step, tensor):
    """Handles Where with a constant condition, or with truth values of an input and a constant."""
    condition, *sides = step.arguments
    if any(isinstance(side, SymbolicTensor) and (side.integer or side.truth) for side in sides):
        raise ModelError(f"{step.title}: works on integers; put a Cast to float before it")
    _check_rows(step, *sides)
    if isinstance(condition, SymbolicTensor):
        if condition.undefined:
            return _defined(step, condition, *sides)
        if not condition.truth:
            return unknown(step)
        return _chosen(step, _number(step, condition), *sides)
    dims, batch = common(step, *step.arguments)
    if all(isinstance(side, SymbolicTensor) for side in sides):
        one, two = (affine(step, side, scale=mask.astype(float)) for side, mask in zip(sides, (condition, ~condition)))
        return added(step, one, two)
    mask, constant = (condition, sides[0]) if isinstance(sides[1], SymbolicTensor) else (~condition, sides[1])
    mask, constant = np.broadcast_to(mask, dims), np.broadcast_to(constant, dims).astype(np.float64)
    low = mask & (constant <= _LOW)
    finite = low & np.isfinite(constant)
    if low.any() and not (finite.any() and any(low.all(axis=axis).any() for axis in (-1, -2)[: low.ndim])):
        tensor = broadcast(step, tensor, dims, batch)
        tensor = replace(tensor.permuted(hide(tensor.sample, low)), low=tensor.low or bool(finite.any()))
        mask = mask & ~low
    if not mask.any():
        return broadcast(step, tensor, dims, batch)
    return _behind_masks(step, [tensor], lambda one: affine(step, one, scale=1.0 - mask, shift=np.where(mask, constant, 0.0)))


def _chosen(step, condition, one, two):
    """Returns Where of a condition, 0 or 1."""
    inverted, (low, one, two) = _inverted(step, condition), _stood_in(one, two)
    tensors = [side for side in (one, two) if isinstance(side, SymbolicTensor)]
    if not tensors:
        if _differ(one, two):
            result = added(step, affine(step, condition, scale=one), affine(step, inverted, scale=two))
        else:
            result = affine(step, condition, scale=one - two, shift=two)
        alone = low and (one != two).all() and (np.maximum(one, two) > STAND_IN).all() and (one.size, two.size) == (1, 1)
        guard = (inverted if one < two else condition) if alone else None
        return replace(result, low=low, guard=guard and broadcast(step, guard, result.dims, result.batch))
    if len(tensors) == 2:
        if any(side.low or hidden(side.index).any() for side in tensors):
            raise ModelError(f"{step.title}: chooses between two tensors, and minus infinity has been added to one")
        return added(step, product(step, one, condition), product(step, two, inverted))
    kept, other, constant = (condition, inverted, two) if tensors[0] is one else (inverted, condition, one)
    if hidden(tensors[0].index).any() and not low:
        raise ModelError(f"{step.title}: replaces minus infinity, which has been added before, by a number")
    result = _behind_masks(
        step, tensors, lambda tensor: added(step, product(step, tensor, kept), affine(step, other, scale=constant))
    )
    return replace(result, low=low or tensors[0].low, guard=_kept_guard(step, result, kept, tensors[0]) if low else None)


def _differ(one, two):
    large, small = np.maximum(np.abs(one), np.abs(two)), np.minimum(np.abs(one), np.abs(two))
    return bool(((small != 0) & (large > 2.0**8 * small)).any())


def _kept_guard(step, result, kept, tensor):
    """Returns the guard of `result`: `tensor` where `kept` is 1, and minus infinity elsewhere. None: it is not known."""
    if tensor.low and tensor.guard is None:
        return None
    kept = broadcast(step, kept, result.dims, result.batch)
    return product(step, kept, broadcast(step, tensor.guard, result.dims, result.batch)) if tensor.low else kept


def _stood_in(*sides):
    """Returns True if a constant has minus infinity, and the sides in binary64 with a number in its place."""
    constants = [None if isinstance(side, SymbolicTensor) else side.astype(np.float64) for side in sides]
    low = [constant is not None and np.isneginf(constant).any() for constant in constants]
    return any(low), *(
        side if constant is None else np.where(np.isneginf(constant), STAND_IN, in_range(constant))
        for side, constant in zip(sides, constants)
    )


def added_masks(step):
    """Returns Add with minus infinity among its constants, or added to one of its tensors before; None for any other Add."""
    if step.operator not in ("Add", "Mul", "Div"):
        return None
    tensors = [value for value in step.arguments if isinstance(value, SymbolicTensor)]
    constants = [value.astype(np.float64) for value in step.arguments if not isinstance(value, SymbolicTensor)]
    low = any(value.low for value in tensors)
    infinite = any(np.isneginf(value).any() for value in constants)
    if not (infinite or low or any(hidden(value.index).any() for value in tensors)):
        return None
    if step.operator != "Add":
        return _scaled(step, tensors, constants)
    return masked_sum(step, tensors, constants)


def _scaled(step, tensors, constants):
    scale = constants[0] if constants and step.arguments[0] is tensors[0] else np.zeros(1)
    if not (scale > 0).all() or tensors[0].low:
        raise ModelError(f"{step.title}: works on infinite values of a mask; a mask must be added directly before a Softmax")
    scale = 1 / scale if step.operator == "Div" else scale
    return _behind_masks(step, tensors, lambda one: affine(step, one, scale=scale))


def masked_sum(step, tensors, constants):
    """Returns the sum of one or two tensors, and of at most one constant in binary64 if there is one, with masks among all."""
    if len(tensors) == 2 and constants:
        return masked_sum(step, [masked_sum(step, tensors, [])], constants)
    dims, batch = common(step, *tensors, *constants)
    masks = [np.isneginf(value) for value in constants]
    constants = [np.where(mask, 0, value) for mask, value in zip(masks, constants)]

    def plain(*tensors):
        if len(tensors) == 2:
            return added(step, *tensors)
        return affine(step, *tensors, shift=constants[0]) if constants and constants[0].any() else tensors[0]

    result = broadcast(step, _behind_masks(step, tensors, plain), dims, batch)
    for mask in masks:
        result = result.permuted(hide(result.sample, np.broadcast_to(mask, dims)))
    lows = [value for value in tensors if value.low]
    guards = [value.guard and broadcast(step, value.guard, dims, batch) for value in lows]
    guard = guards[0] if len(guards) == 1 else product(step, *guards) if len(guards) == 2 and None not in guards else None
    return replace(result, low=bool(lows), guard=guard)


def _behind_masks(step, tensors, make):
    """Returns the result of elementwise arithmetic on tensors to which minus infinity may be added, with it added again."""
    result = make(*(tensor.permuted(revealed(tensor.sample)) for tensor in tensors))
    for tensor in tensors:
        mask = hidden(tensor.index)
        if mask.any():
            result = result.permuted(hide(result.sample, np.broadcast_to(mask.reshape(tensor.dims), result.dims)))
    return result

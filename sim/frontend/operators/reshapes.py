"""Reshaping operators of ONNX, which change the shape of a tensor but not the order of its values.

In this module a size is a pair: a number, and the power of the open batch size that multiplies the number. The batch axis is
therefore known in every shape, and the reader can check that the values of a sample stay contiguous.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ...ir.errors import ModelError
from ..batch import Sizes
from ..index.values import BatchFixed, SymbolicTensor, common, show
from ..registry import SHAPES, operator
from .elementwise import broadcast

__all__ = ["pairs"]


@operator("Shape", group=SHAPES, attributes=("start", "end"))
@operator("Size", group=SHAPES)
def shape_of(step, tensor):
    """Handles Shape and Size. Returns an integer array, or a :class:`sim.frontend.batch.Sizes` if the batch size is open."""
    sizes = _sizes(tensor)
    if step.operator == "Size":
        (size, power), kind = _product(sizes), ()
    else:
        sizes = sizes[step.attributes.get("start", 0) : step.attributes.get("end")]
        (size, power), kind = zip(*sizes) if sizes else ((), ()), (len(sizes),)
    values, powers = (np.array(numbers, np.int64).reshape(kind) for numbers in (size, power))
    return Sizes(values, powers) if powers.any() else values


def _sizes(tensor):
    """Returns the shape of a tensor as a list of pairs: a number, and the power of the open batch size that multiplies the
    number."""
    return [(size, int(tensor.is_open and axis == tensor.batch)) for axis, size in enumerate(tensor.shape(tensor.samples or 1))]


@operator("Reshape", group=SHAPES, shaped_by_constants=True, counts_from_end=True, keeps_labels=True, attributes=("allowzero",))
@operator("Flatten", group=SHAPES, shaped_by_constants=True, keeps_labels=True, attributes=("axis",))
@operator("Squeeze", "Unsqueeze", group=SHAPES, shaped_by_constants=True, keeps_labels=True, attributes=("axes",))
def reshape(step, tensor):
    """Handles Flatten, Reshape, Squeeze and Unsqueeze."""
    sizes, operator = _sizes(tensor), step.operator
    if operator == "Flatten":
        axis = step.attributes.get("axis", 1)
        return _placed(step, tensor, [_product(sizes[:axis]), _product(sizes[axis:])])
    if operator == "Reshape":
        return _placed(step, tensor, _wanted(step, tensor, sizes))
    axes = step.integers("axes", 1)
    if operator == "Unsqueeze":
        rank = len(sizes) + len(axes)
        axes, rest = {axis % rank for axis in axes}, iter(sizes)
        return _placed(step, tensor, [(1, 0) if axis in axes else next(rest) for axis in range(rank)])
    if axes == []:
        raise ModelError(f"{step.title}: its list of axes is empty, which ONNX interpreters read differently; name the axes")
    bare = tensor.bare or axes is None and tensor.is_open and tensor.dims[tensor.batch] == 1
    axes = [axis for axis, size in enumerate(sizes) if size == (1, 0)] if axes is None else {axis % len(sizes) for axis in axes}
    if any(sizes[axis] == (1, 1) for axis in axes):
        raise BatchFixed(f"{step.title}: removes the batch from {show(tensor)}", 1)
    if any(sizes[axis] != (1, 0) for axis in axes):
        raise ModelError(f"{step.title}: removes the batch from {show(tensor)}")
    return replace(_placed(step, tensor, [size for axis, size in enumerate(sizes) if axis not in axes]), bare=bare)


def pairs(step):
    """Returns the shape that a node's second input gives, as a list of pairs."""
    value = step.arguments[1]
    if isinstance(value, SymbolicTensor):
        raise ModelError(f"{step.title}: its shape must be constant")
    if isinstance(value, Sizes):
        return list(zip(value.values.astype(np.int64).reshape(-1).tolist(), value.powers.reshape(-1).tolist()))
    return [(int(size), 0) for size in np.asarray(value).reshape(-1)]


def _product(sizes):
    return prod(size for size, _ in sizes), sum(power for _, power in sizes)


def _shown(sizes):
    return (
        "("
        + ", ".join(f"batch * {size}" if power and size != 1 else "batch" if power else str(size) for size, power in sizes)
        + ")"
    )


def _wanted(step, tensor, sizes):
    """Returns the target sizes of a Reshape, as pairs. Sizes 0 and -1 are replaced by the actual numbers."""
    target = pairs(step)
    if not step.attributes.get("allowzero", 0):
        if any(size == (0, 0) for size in target[len(sizes) :]):
            raise ModelError(f"{step.title}: {_shown(target)} copies an axis that {show(tensor)} does not have")
        target = [sizes[axis] if size == (0, 0) else size for axis, size in enumerate(target)]
    if (-1, 0) not in target:
        return target
    if target.count((-1, 0)) > 1:
        raise ModelError(f"{step.title}: two open sizes in {_shown(target)}")
    rest = [size for size in target if size != (-1, 0)]
    (total, power), (others, used) = _product(sizes), _product(rest)
    if others < 1 or total % others or used > power:
        text = f"{step.title}: shape {show(tensor)} cannot become {_shown(target)}"
        if tensor.is_open and not used and target[0][0] > 1:
            raise BatchFixed(text, target[0][0], step.node, certain=False)
        raise ModelError(text)
    return [(total // others, power - used) if size == (-1, 0) else size for size in target]


def _placed(step, tensor, sizes):
    """Returns the same values in another shape. The batch's axis is the axis with the same number of values before it, so that a
    sample's values stay contiguous. If there is no such axis, it is the axis that joins some of these values, `outer`, and the
    samples."""
    values, powers = [size for size, _ in sizes], [power for _, power in sizes]
    batch, outer = None, 1
    if tensor.batch is not None:
        before, samples = prod(tensor.dims[: tensor.batch]) * tensor.outer, tensor.samples or 1
        places = [(prod(values[:axis]), axis) for axis in range(len(sizes)) if powers[axis] or not tensor.is_open]
        found = [
            (before // first, axis)
            for first, axis in places
            if 0 < first <= before and before % first == 0 and values[axis] % (before // first * samples) == 0
        ]
        outer, batch = min(found, default=(1, None))
        if batch is not None:
            values[batch] //= samples
    if (
        prod(values) != tensor.size
        or min(values, default=1) < 1
        or tensor.batch is not None
        and batch is None
        or sum(powers) != tensor.is_open
    ):
        _unplaced(step, tensor, sizes)
    return replace(tensor, dims=tuple(values), batch=batch, outer=outer)


def _unplaced(step, tensor, sizes):
    """Raises the error for a reshape that changes the number of values or mixes samples. The error is BatchFixed if one batch
    size would make the reshape valid."""
    total, power = _product(sizes)
    text = f"{step.title}: shape {show(tensor)} cannot become {_shown(sizes)}"
    if tensor.is_open and not power and total > 0 and total % tensor.size == 0:
        raise BatchFixed(text, total // tensor.size)
    have = (tensor.size * (tensor.samples or 1), int(tensor.is_open))
    if (total, power) != have or min((size for size, _ in sizes), default=1) < 1:
        raise ModelError(text)
    if tensor.is_open and sizes[0][0] > 1 and not sizes[0][1]:
        raise BatchFixed(f"{text}: samples would be mixed", sizes[0][0], step.node, certain=False)
    raise ModelError(f"{text}: samples would be mixed")


@operator("Expand", group=SHAPES, shaped_by_constants=True)
def expand(step, tensor):
    target = pairs(step)
    if tensor.batch is not None:
        axis = tensor.batch - len(tensor.dims)
        all_of_it = (tensor.dims[tensor.batch] * (tensor.samples or 1), int(tensor.is_open))
        if len(target) >= -axis and target[axis] == all_of_it:
            target[axis] = (1, 0)
    if any(power for _, power in target) or min((size for size, _ in target), default=1) < 1:
        raise ModelError(f"{step.title}: {show(tensor)} cannot become {_shown(target)}")
    return broadcast(step, tensor, *common(step, tensor, tuple(size for size, _ in target)))

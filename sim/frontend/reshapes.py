"""ONNX' operators that give the same values another shape.

Sizes are pairs here, a number and the power of the open batch that it is multiplied by. So it is known of every shape where the
batch is, and whether a sample's values stay together.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ..ir.errors import ModelError
from .batch import Sizes
from .elementwise import broadcast
from .values import BatchFixed, Flow, common, show

__all__ = ["shape_of", "reshape", "expand", "pairs"]


def shape_of(step, flow):
    """Shape and Size: numbers, or of an open batch what stands for them."""
    sizes = _sizes(flow)
    if step.operator == "Size":
        (size, power), kind = _product(sizes), ()
    else:
        sizes = sizes[step.attributes.get("start", 0):step.attributes.get("end")]
        (size, power), kind = zip(*sizes) if sizes else ((), ()), (len(sizes),)
    values, powers = (np.array(numbers, np.int64).reshape(kind) for numbers in (size, power))
    return Sizes(values, powers) if powers.any() else values


def _sizes(flow):
    """The shape of a tensor, as pairs: a number, and the power of an open batch that it is multiplied by."""
    return [(size, int(flow.is_open and axis == flow.batch)) for axis, size in enumerate(flow.shape(flow.samples or 1))]


def reshape(step, flow):
    """Flatten, Reshape, Squeeze, Unsqueeze."""
    sizes, operator = _sizes(flow), step.operator
    if operator == "Flatten":
        axis = step.attributes.get("axis", 1)
        return _placed(step, flow, [_product(sizes[:axis]), _product(sizes[axis:])])
    if operator == "Reshape":
        return _placed(step, flow, _wanted(step, flow, sizes))
    axes = step.integers("axes", 1)
    if operator == "Unsqueeze":
        rank = len(sizes) + len(axes)
        axes, rest = {axis % rank for axis in axes}, iter(sizes)
        return _placed(step, flow, [(1, 0) if axis in axes else next(rest) for axis in range(rank)])
    if axes == []:
        raise ModelError(f"{step.title}: its list of axes is empty, which interpreters of ONNX read in different ways; name them")
    bare = flow.bare or axes is None and flow.is_open and flow.dims[flow.batch] == 1
    axes = [axis for axis, size in enumerate(sizes) if size == (1, 0)] if axes is None else \
        {axis % len(sizes) for axis in axes}
    if any(sizes[axis] == (1, 1) for axis in axes):
        raise BatchFixed(f"{step.title}: removes the batch from {show(flow)}", 1)
    if any(sizes[axis] != (1, 0) for axis in axes):
        raise ModelError(f"{step.title}: removes the batch from {show(flow)}")
    return replace(_placed(step, flow, [size for axis, size in enumerate(sizes) if axis not in axes]), bare=bare)


def pairs(step):
    """The shape that a node asks for."""
    value = step.arguments[1]
    if isinstance(value, Flow):
        raise ModelError(f"{step.title}: its shape must be constant")
    if isinstance(value, Sizes):
        return list(zip(value.values.astype(np.int64).reshape(-1).tolist(), value.powers.reshape(-1).tolist()))
    return [(int(size), 0) for size in np.asarray(value).reshape(-1)]


def _product(sizes):
    return prod(size for size, _ in sizes), sum(power for _, power in sizes)


def _shown(sizes):
    return "(" + ", ".join(f"batch * {size}" if power and size != 1 else "batch" if power else str(size)
                           for size, power in sizes) + ")"


def _wanted(step, flow, sizes):
    """The sizes that a Reshape asks for."""
    target = pairs(step)
    if not step.attributes.get("allowzero", 0):
        if any(size == (0, 0) for size in target[len(sizes):]):
            raise ModelError(f"{step.title}: {_shown(target)} copies an axis that {show(flow)} does not have")
        target = [sizes[axis] if size == (0, 0) else size for axis, size in enumerate(target)]
    if (-1, 0) not in target:
        return target
    if target.count((-1, 0)) > 1:
        raise ModelError(f"{step.title}: two open sizes in {_shown(target)}")
    rest = [size for size in target if size != (-1, 0)]
    (total, power), (others, used) = _product(sizes), _product(rest)
    if others < 1 or total % others or used > power:
        text = f"{step.title}: shape {show(flow)} can't become {_shown(target)}"
        if flow.is_open and not used and target[0][0] > 1:
            raise BatchFixed(text, target[0][0], step.node, certain=False)
        raise ModelError(text)
    return [(total // others, power - used) if size == (-1, 0) else size for size in target]


def _placed(step, flow, sizes):
    """The same values in a shape: the batch is along the axis before which as much stands as before, so that a sample's values
    stay together."""
    values, powers = [size for size, _ in sizes], [power for _, power in sizes]
    if flow.batch is None:
        batch = None
    else:
        before, samples = prod(flow.dims[:flow.batch]), flow.samples or 1
        batch = next((axis for axis in range(len(sizes)) if prod(values[:axis]) == before and values[axis] % samples == 0
                      and (powers[axis] if flow.is_open else True)), None)
        if batch is not None:
            values[batch] //= samples
    if prod(values) != flow.size or min(values, default=1) < 1 or flow.batch is not None and batch is None \
            or sum(powers) != flow.is_open:
        _unplaced(step, flow, sizes)
    return replace(flow, dims=tuple(values), batch=batch)


def _unplaced(step, flow, sizes):
    """Refuses a shape that the values do not fit into, or in which samples would be mixed."""
    total, power = _product(sizes)
    text = f"{step.title}: shape {show(flow)} can't become {_shown(sizes)}"
    if flow.is_open and not power and total > 0 and total % flow.size == 0:
        raise BatchFixed(text, total // flow.size)
    have = (flow.size * (flow.samples or 1), int(flow.is_open))
    if (total, power) != have or min((size for size, _ in sizes), default=1) < 1:
        raise ModelError(text)
    if flow.is_open and sizes[0][0] > 1 and not sizes[0][1]:
        raise BatchFixed(f"{text}: samples would be mixed", sizes[0][0], step.node, certain=False)
    raise ModelError(f"{text}: samples would be mixed")


def expand(step, flow):
    target = pairs(step)
    if flow.batch is not None:
        axis = flow.batch - len(flow.dims)
        all_of_it = (flow.dims[flow.batch] * (flow.samples or 1), int(flow.is_open))
        if len(target) >= -axis and target[axis] == all_of_it:
            target[axis] = (1, 0)
    if any(power for _, power in target) or min((size for size, _ in target), default=1) < 1:
        raise ModelError(f"{step.title}: {show(flow)} can't become {_shown(target)}")
    return broadcast(step, flow, *common(step, flow, tuple(size for size, _ in target)))

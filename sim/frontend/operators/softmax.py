"""Softmax and LogSoftmax, with the masks that are added before."""

from dataclasses import replace

import numpy as np

from ...fusion.nodes import Affine, Linear, identity
from ...ir.errors import ModelError
from ..index.narrow import narrowed
from ..index.strided import strided
from ..index.values import STAND_IN, hidden, hide, revealed, show
from ..index.views import arranged, arrangement, everything, positions_in_order
from ..messages import of_host
from ..registry import FINAL, operator
from .concatenation import concat
from .elementwise import affine

__all__ = ["softmax"]


@operator("Softmax", "LogSoftmax", group=FINAL, on_constants=False, counts_from_end=True, attributes=("axis",))
def shares_of(step, tensor):
    """Handles Softmax and LogSoftmax."""
    result, mask = softmax(step, tensor), hidden(tensor.index).reshape(tensor.dims)
    emptied = bool(mask.all(axis=_covered_axes(step, tensor)).any())
    shares = step.operator == "Softmax" and (tensor.guard is not None or not tensor.low)  # else NaN cannot be located
    return replace(result, shares=shares, emptied=emptied, guard=tensor.guard)


def _covered_axes(step, tensor):
    """Returns the axes of Softmax. Before opset 13 the operator covers all axes that start at its attribute."""
    axis = step.attributes.get("axis", -1 if step.opset >= 13 else 1) % len(tensor.dims)
    return (axis,) if step.opset >= 13 else tuple(range(axis, len(tensor.dims)))


def softmax(step, tensor, kind=None):
    """Returns Softmax or LogSoftmax over the channels, or over all values of a sample. `kind` is "softmax" or "log". Default:
    the operator's kind. Values at several positions are first copied to one: the reader removes copy and softmax at the end of
    the model. A LogSoftmax over one of several axes is left to the host."""
    axes = _covered_axes(step, tensor)
    axis = axes[0]
    if tensor.batch in axes:
        raise ModelError(
            f"{step.title}: is along axis {axis} of {show(tensor)}, so across the batch; a sample may only depend on itself"
        )
    covered = np.prod([tensor.dims[axis] for axis in axes])
    kind = kind or ("softmax" if step.operator == "Softmax" else "log")
    mask = hidden(tensor.index).reshape(tensor.dims)
    if tensor.low and mask.all(axis=axes).any():
        raise ModelError(f"{step.title}: a mask adds infinite or very low values to all {covered} values of a row")
    if tensor.low and (number := _other_low_number(tensor.source)):
        raise ModelError(
            f"{step.title}: its masks have minus infinity and numbers as low as {number:.3g}, which the core cannot tell apart; "
            f"use minus infinity for both"
        )
    tensor = replace(tensor, index=revealed(tensor.index), low=False)
    if covered == tensor.size:
        tensor = everything(step, tensor)
        if kind == "softmax" and tensor.source.shape[:2] != (1, 1):
            node = strided(step, tensor.source, tensor.index.reshape(-1, 1, 1))
            tensor = tensor.of(node, np.arange(tensor.size).reshape(tensor.dims))
        return _shares(step, _masked(step, tensor, mask), kind)
    if covered == tensor.dims[axis] and kind == "softmax":
        sliced = _sliced_shares(step, tensor, mask, axis)
        return sliced or _shares(step, _masked(step, _arranged(step, tensor, axis), mask), kind)
    if kind == "log":
        raise of_host(step.node, "is along one of several axes")
    flat = tensor.permuted(hide(tensor.sample, mask).reshape(*tensor.dims[:axis], -1))
    result = softmax(replace(step, attributes={"axis": -1}, opset=13), flat, kind)
    return result.permuted(result.sample.reshape(tensor.dims))


def _other_low_number(node):
    """Returns a constant of about the size of the number in place of minus infinity, or larger. It searches `node` and the nodes
    before it, up to the next Softmax. Returns None if there is no such constant."""
    stack, seen = [node], set()
    while stack:
        node = stack.pop()
        for constants in (node.scale, node.shift) if isinstance(node, Affine) else ():
            sizes = np.abs(np.zeros(1) if constants is None else constants)
            found = sizes[(sizes > -STAND_IN / 4) & (sizes != -STAND_IN) & np.isfinite(sizes)]
            if found.size:
                return -float(found.flat[0])
        if node not in seen and not (isinstance(node, Linear) and node.softmax):
            stack += node.sources
        seen.add(node)
    return None


def _masked(step, tensor, mask):
    return affine(step, tensor, shift=np.where(mask, -np.inf, 0.0)) if mask.any() else tensor


def _sliced_shares(step, tensor, mask, axis):
    """Computes a Softmax along `axis` separately for each slice along a second axis, such as the heads of attention. This is
    needed if the softmax axis consists of the channels of a position only within a slice. Returns None if no second axis has
    this property."""
    if _is_arranged(tensor, axis):
        return None
    for other, size in enumerate(tensor.dims):
        if size == 1 or other in (axis, tensor.batch):
            continue
        slices = [narrowed(tensor.permuted(tensor.sample.take([place], axis=other))) for place in range(size)]
        if all(_is_arranged(one, axis) for one in slices):
            masks = [mask.take([place], axis=other) for place in range(size)]
            ready = (_masked(step, _arranged(step, one, axis), hides) for one, hides in zip(slices, masks))
            made = [_shares(step, one, "softmax") for one in ready]
            return concat(replace(step, arguments=made, attributes={"axis": other}), made[0])
    return None


def _is_arranged(tensor, axis):
    """Returns True if the values along an axis are the channels of a node, at each of its positions."""
    return next(arranged(tensor, last=axis), None) is not None or _has_lines(tensor, axis)


def _has_lines(tensor, axis):
    return axis == tensor.sample.ndim - 1 and positions_in_order(tensor) is not None


def _arranged(step, tensor, axis):
    """Returns the tensor. If the values along an axis are not the channels of a node, they are copied into one."""
    return tensor if _has_lines(tensor, axis) else arrangement(step, tensor, last=axis)[0]


def _shares(step, tensor, kind):
    return tensor.of(Linear(**step.titles, shape=tensor.source.shape, parts=(identity(tensor.source),), softmax=kind))

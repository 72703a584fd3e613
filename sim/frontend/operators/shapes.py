"""Operators of ONNX that only change the index map of a tensor. They cost no cycles."""

from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from ...fusion.nodes import Input, Unknown
from ...ir.errors import ModelError
from ..index.values import FLOATS, INTEGERS, LOWEST, SymbolicTensor, limited, show
from ..index.views import seen_through
from ..registry import SHAPES, operator
from .lookups import looked_up

__all__ = ["cast_like", "own_axis"]

#: An end of a Slice that means the end of any axis; exporters write this number or the largest 64-bit integer.
_NO_END = (1 << 31) - 1


_SMALL_FLOATS = ("saturate", "round_mode")  # attributes of casts to types that are refused


@operator("Identity", group=SHAPES, counts_from_end=True, keeps_labels=True)
@operator("Dropout", group=SHAPES, counts_from_end=True, keeps_labels=True, attributes=("ratio", "seed"))  # both for training
@operator("Cast", group=SHAPES, counts_from_end=True, keeps_labels=True, attributes=("to", *_SMALL_FLOATS))
@operator("CastLike", group=SHAPES, joins=True, counts_from_end=True, keeps_labels=True, attributes=_SMALL_FLOATS)
def keep(step, tensor):
    """Handles Identity, Dropout, Cast and CastLike."""
    if step.operator in ("Identity", "Dropout"):
        return tensor
    if step.operator == "CastLike":
        like = step.arguments[1]
        if isinstance(like, SymbolicTensor):
            _check_like(step, like)
            return replace(tensor, integer=False, truth=False)
        kind = helper.np_dtype_to_tensor_dtype(like.dtype)
    else:
        kind = step.attributes["to"]
    if kind in INTEGERS and not tensor.integer and isinstance(tensor.source, Input):
        raise ModelError(f"{step.title}: a Cast of an input to integers is not supported; declare the input itself as integers")
    if kind in INTEGERS and not tensor.integer:
        raise ModelError(f"{step.title}: a Cast to integers is not supported; remove it")
    if kind not in (*FLOATS, *INTEGERS):
        raise ModelError(f"{step.title}: a Cast to this type is not supported; use float32")
    if kind in INTEGERS and kind not in (TensorProto.INT32, TensorProto.INT64):
        raise ModelError(f"{step.title}: a Cast to small integers is not supported; use float32")
    return replace(tensor, integer=kind in INTEGERS, truth=False)


def _check_like(step, like):
    """Raises an error if the second input of a CastLike is a tensor of integers or truth values. A symbolic tensor does not
    record its integer type."""
    if like.integer or isinstance(like.source, Unknown) and like.source.truth:
        raise ModelError(f"{step.title}: a Cast to integers, or to true and false, is not supported; remove it")


def cast_like(step, like):
    """Returns the constant input of a CastLike in the type of the symbolic tensor `like`, which must be floating-point."""
    _check_like(step, like)
    constant = step.arguments[0]
    return constant if constant.dtype.kind == "f" else constant.astype(np.float32)


@operator("Transpose", group=SHAPES, shaped_by_constants=True, keeps_labels=True, attributes=("perm",))
def transpose(step, tensor):
    axes = list(step.attributes.get("perm", range(len(tensor.dims))[::-1]))
    return tensor.permuted(tensor.sample.transpose(axes), None if tensor.batch is None else axes.index(tensor.batch))


@operator("DepthToSpace", "SpaceToDepth", group=SHAPES, attributes=("blocksize", "mode"))
def blocks(step, tensor):
    """Handles DepthToSpace and SpaceToDepth: they move channels into squares of pixels, and squares of pixels into channels."""
    size = step.attributes.get("blocksize", 0)
    if len(tensor.dims) != 4 or tensor.batch not in (0, None) or size < 1:
        raise ModelError(
            f"{step.title}: its input of shape {show(tensor)} is not (batch, channels, height, width), or its "
            f"blocksize {size} is not positive"
        )
    batch, channels, height, width = tensor.dims
    mode = step.attributes.get("mode", b"DCR")
    if mode not in (b"DCR", b"CRD"):
        raise ModelError(f"{step.title}: its mode must be DCR or CRD")
    if step.operator == "SpaceToDepth":
        if height % size or width % size:
            raise ModelError(f"{step.title}: height and width of {show(tensor)} are not multiples of its blocksize {size}")
        split = tensor.sample.reshape(batch, channels, height // size, size, width // size, size)
        axes = (0, 1, 3, 5, 2, 4) if mode == b"CRD" else (0, 3, 5, 1, 2, 4)
        return tensor.permuted(split.transpose(axes).reshape(batch, -1, height // size, width // size))
    if channels % size**2:
        raise ModelError(f"{step.title}: channels of {show(tensor)} are not a multiple of its blocksize {size} squared")
    if mode == b"CRD":
        split = tensor.sample.reshape(batch, -1, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    else:
        split = tensor.sample.reshape(batch, size, size, -1, height, width).transpose(0, 3, 4, 1, 5, 2)
    return tensor.permuted(split.reshape(batch, -1, height * size, width * size))


# Selection of values


def own_axis(step, tensor, axis, what):
    """Returns an axis as a non-negative index. Raises an error if it is the batch axis. `what` is the verb for the message."""
    axis %= len(tensor.dims)
    if axis == tensor.batch:
        raise ModelError(
            f"{step.title}: {what} along axis {axis} of {show(tensor)}, the batch; a sample may only depend on itself"
        )
    return axis


@operator("Slice", group=SHAPES, shaped_by_constants=True, attributes=("starts", "ends", "axes"))
def cut(step, tensor):
    """Handles Slice, with constant bounds."""
    rank = len(tensor.dims)
    starts, ends = step.integers("starts", 1), step.integers("ends", 2)
    axes, steps = step.integers("axes", 3), step.integers("steps", 4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    sample = tensor.sample
    for axis, start, end, stride in zip(axes, starts, ends, steps):
        if axis % rank == tensor.batch and _whole_batch(tensor, start, end, stride):
            continue
        axis = own_axis(step, tensor, axis, "cuts")
        size = tensor.dims[axis]
        places = range(size)[slice(start, end if end >= -size or stride > 0 else None, stride)]
        if not places:
            raise ModelError(f"{step.title}: takes no values of axis {axis} of {show(tensor)}")
        sample = sample.take(places, axis=axis)
    return seen_through(tensor.permuted(sample))


def _whole_batch(tensor, start, end, stride):
    """Returns True if a Slice takes all samples. If the batch size is open, `end` must be larger than every possible batch
    size."""
    largest = _NO_END if tensor.is_open else tensor.dims[tensor.batch] * tensor.samples
    return stride == 1 and end >= largest and (start == 0 or start <= -largest)


@operator("Split", group=SHAPES, shaped_by_constants=True, attributes=("axis", "split", "num_outputs"))
def split(step, tensor):
    axis = own_axis(step, tensor, step.attributes.get("axis", 0), "splits")
    size, parts = tensor.dims[axis], len(step.node.output)
    sizes = step.integers("split", 1)
    if sizes is None:
        sizes = [-(-size // parts)] * (parts - 1)
        sizes.append(size - sum(sizes))
    if min(sizes) < 1:
        raise ModelError(f"{step.title}: {size} values cannot be split into {sizes}")
    return [seen_through(tensor.permuted(part)) for part in np.split(tensor.sample, np.cumsum(sizes)[:-1], axis=axis)]


@operator("Gather", group=SHAPES, joins=True, attributes=("axis",))
def gather(step, tensor):
    table, index = step.arguments
    if isinstance(index, SymbolicTensor):
        if isinstance(table, SymbolicTensor) or step.attributes.get("axis", 0) % max(1, table.ndim) or not table.ndim:
            raise ModelError(f"{step.title}: indices that are not constant can only select rows, along axis 0, of a constant")
        return looked_up(step, table, index)
    axis = own_axis(step, tensor, step.attributes.get("axis", 0), "picks")
    if not index.size:
        raise ModelError(f"{step.title}: picks nothing")
    limited(step, tensor.size, index.size)
    batch = tensor.batch if tensor.batch is None or tensor.batch < axis else tensor.batch + index.ndim - 1
    return seen_through(tensor.permuted(tensor.sample.take(index, axis=axis), batch))


@operator("GatherND", group=SHAPES, shaped_by_constants=True, attributes=("batch_dims",))
def gather_places(step, tensor):
    """Handles GatherND with constant indices, of one sample."""
    index = step.arguments[1]
    if isinstance(index, SymbolicTensor) or step.attributes.get("batch_dims", 0) or tensor.batch is not None:
        raise ModelError(f"{step.title}: is only supported with constant indices, a batch of one, and batch_dims of 0")
    if not index.size or index.shape[-1] > tensor.sample.ndim:
        raise ModelError(f"{step.title}: indices of {show(index.shape)} do not fit {show(tensor)}")
    limited(step, index.size, tensor.size)
    return tensor.permuted(tensor.sample[tuple(np.moveaxis(index, -1, 0))])


@operator("Pad", group=SHAPES, shaped_by_constants=True, attributes=("mode", "pads", "value"))
def pad(step, tensor):
    mode = step.attributes.get("mode", b"constant").decode()
    pads = step.integers("pads", 1)
    value = step.attributes.get("value", 0.0) if step.opset < 11 else step.argument(2)
    axes = step.integers("axes", 3)
    axes = list(range(len(tensor.dims))) if axes is None else axes
    fill = -1 if value is None or np.all(np.asarray(value) == 0) else LOWEST
    if isinstance(value, SymbolicTensor) or fill == LOWEST and not np.all(np.asarray(value) <= np.finfo(np.float32).min):
        raise ModelError(f"{step.title}: pads with {value}; only 0 is supported, and before MaxPool the lowest number")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ModelError(f"{step.title}: mode {mode} is not supported")
    sample, widths = tensor.sample, [(0, 0)] * tensor.sample.ndim
    for axis, before, after in zip(axes, pads, pads[len(axes) :]):
        if (before, after) == (0, 0):
            continue
        axis = own_axis(step, tensor, axis, "pads")
        size = sample.shape[axis]
        if mode != "constant" and min(before, after) < 0:
            raise ModelError(f"{step.title}: mode {mode} with negative pads is not supported; cut with a Slice")
        sample = sample.take(range(max(0, -before), size - max(0, -after)), axis=axis)
        widths[axis] = (max(0, before), max(0, after))
    if not sample.size:
        raise ModelError(f"{step.title}: leaves no values of {show(tensor)}")
    limited(step, *(size + sum(width) for size, width in zip(sample.shape, widths)))
    options = {"constant_values": fill} if mode == "constant" else {}
    return tensor.permuted(np.pad(sample, widths, mode=mode, **options))

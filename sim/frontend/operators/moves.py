"""Operators of ONNX that move single values by constant indices, sizes or conditions. They cost no cycles, or one addition."""

from dataclasses import replace
from math import prod

import numpy as np

from ...ir.errors import ModelError
from ..index.values import SymbolicTensor, limited, show
from ..index.views import seen_through
from ..registry import SHAPES, operator
from .concatenation import together
from .elementwise import added, affine
from .shapes import own_axis

__all__ = []


@operator("Tile", group=SHAPES, shaped_by_constants=True)
def tile(step, tensor):
    """Handles Tile with constant repeats."""
    repeats = step.integers("repeats", 1)
    if len(repeats) != len(tensor.dims) or min(repeats, default=1) < 1:
        raise ModelError(f"{step.title}: its repeats {repeats} do not fit {show(tensor)}")
    for axis, count in enumerate(repeats):
        if count > 1:
            own_axis(step, tensor, axis, "repeats")
    limited(step, tensor.size, *repeats)
    return tensor.permuted(np.tile(tensor.sample, repeats))


@operator("Compress", group=SHAPES, shaped_by_constants=True, attributes=("axis",))
def compress(step, tensor):
    """Handles Compress with a constant condition."""
    places, axis = np.flatnonzero(step.arguments[1]), step.attributes.get("axis")
    sample = tensor.sample
    if axis is None:
        _check_alone(step, tensor)
        sample, axis = sample.reshape(-1), 0
    else:
        axis = own_axis(step, tensor, axis, "selects")
    if not places.size or places[-1] >= sample.shape[axis]:
        raise ModelError(f"{step.title}: selects nothing, or values that {show(tensor)} does not have")
    return seen_through(tensor.permuted(sample.take(places, axis=axis)))


@operator("CenterCropPad", group=SHAPES, shaped_by_constants=True, attributes=("axes",))
def center(step, tensor):
    """Handles CenterCropPad. Of an odd difference, the larger half is at the end."""
    sizes, axes, sample = step.integers("shape", 1), step.attributes.get("axes"), tensor.sample
    axes = list(range(len(tensor.dims))) if axes is None else axes
    if len(axes) != len(sizes) or min(sizes, default=1) < 1:
        raise ModelError(f"{step.title}: its shape {sizes} does not fit {show(tensor)}")
    for axis, size in zip(axes, sizes):
        have = tensor.shape(tensor.samples or 1)[axis]
        if size == have and not (tensor.is_open and axis % len(tensor.dims) == tensor.batch):
            continue
        axis = own_axis(step, tensor, axis, "cuts")
        first, widths = max(have - size, 0) // 2, [(0, 0)] * sample.ndim
        sample = sample.take(range(first, first + min(have, size)), axis=axis)
        before = max(size - have, 0) // 2
        widths[axis] = before, max(size - have, 0) - before
        limited(step, sample.size // min(have, size), size)
        sample = np.pad(sample, widths, constant_values=-1)
    return seen_through(tensor.permuted(sample))


@operator("ReverseSequence", group=SHAPES, shaped_by_constants=True, attributes=("batch_axis", "time_axis"))
def reverse(step, tensor):
    """Handles ReverseSequence with constant lengths, which must be equal if the batch is an axis of the model."""
    lengths, rank = step.integers("sequence_lens", 1), len(tensor.dims)
    batch, time = (step.attributes.get(name, usual) % rank for name, usual in (("batch_axis", 1), ("time_axis", 0)))
    time = own_axis(step, tensor, time, "reverses")
    if tensor.batch is not None and (tensor.batch != batch or len(set(lengths)) > 1 or tensor.dims[batch] != 1):
        raise ModelError(f"{step.title}: its lengths differ from sample to sample, or are of another axis than the batch")
    count = tensor.dims[batch] * (tensor.samples or 1 if tensor.batch == batch else 1)
    if len(lengths) != count and not tensor.is_open or not all(0 <= one <= tensor.dims[time] for one in lengths) or batch == time:
        raise ModelError(f"{step.title}: its lengths {lengths[:8]} do not fit {show(tensor)}")
    sample = np.moveaxis(tensor.sample, (batch, time), (0, 1)).copy()
    for row, length in zip(sample, lengths):
        row[:length] = row[:length][::-1]
    return tensor.permuted(np.moveaxis(sample, (0, 1), (batch, time)))


@operator("GatherElements", group=SHAPES, shaped_by_constants=True, attributes=("axis",))
def gather_elements(step, tensor):
    """Handles GatherElements with constant indices, of one sample."""
    _check_alone(step, tensor)
    return tensor.permuted(tensor.index[_places_of_elements(step, tensor.dims, step.arguments[1])])


@operator("Scatter", group=SHAPES, joins=True, attributes=("axis",))
@operator("ScatterElements", group=SHAPES, joins=True, attributes=("axis", "reduction"))
@operator("ScatterND", group=SHAPES, joins=True, attributes=("reduction",))
def scatter(step, tensor):
    """Handles ScatterElements and ScatterND with constant indices, of one sample. Data or updates may be constant."""
    data, index, updates = step.arguments
    _check_alone(step, data, updates)
    if isinstance(index, SymbolicTensor):
        raise ModelError(f"{step.title}: its indices must be constant")
    dims = data.dims if isinstance(data, SymbolicTensor) else data.shape
    if step.operator == "ScatterND":
        places = _places_of_rows(step, dims, index)
    else:
        places = _places_of_elements(step, dims, index)
    reduction = step.attributes.get("reduction", b"none")
    if reduction not in (b"none", b"add"):
        raise ModelError(f"{step.title}: its reduction must be none or add")
    return _written(step, data, places, updates, reduction == b"add")


@operator("TensorScatter", group=SHAPES, joins=True, attributes=("axis", "mode"))
def scatter_rows(step, tensor):
    """Handles TensorScatter, which writes rows into a cache at constant places."""
    cache, update, first = step.arguments[0], step.arguments[1], step.argument(2)
    both = isinstance(cache, SymbolicTensor) and isinstance(update, SymbolicTensor)
    if not both or isinstance(first, SymbolicTensor):
        raise ModelError(f"{step.title}: its write_indices must be constant, and its cache and update tensors")
    axis = own_axis(step, cache, step.attributes.get("axis", -2), "writes")
    size, count = cache.dims[axis], update.dims[axis] if len(update.dims) == len(cache.dims) else 0
    samples = cache.dims[0]
    first = np.zeros(1, int) if first is None else np.asarray(first).reshape(-1)
    if cache.batch is not None:
        if cache.batch != 0 or update.batch != 0 or samples != 1 or np.unique(first).size > 1:
            raise ModelError(f"{step.title}: its write_indices differ from sample to sample")
        first = first[:1]
    rows = np.broadcast_to(first, (samples,))[:, None] + np.arange(count)
    rows = rows % size if step.attributes.get("mode", b"linear") == b"circular" else rows
    if axis == 0 or not count or rows.min() < 0 or rows.max() >= size:
        raise ModelError(f"{step.title}: its update of {show(update)} does not fit into {show(cache)}")
    rows = rows.reshape(samples, *(count if one == axis else 1 for one in range(1, len(cache.dims))))
    return _written(step, cache, _places_along(cache.dims, np.broadcast_to(rows, update.dims), axis), update, False)


def _check_alone(step, *tensors):
    if any(isinstance(tensor, SymbolicTensor) and tensor.batch is not None for tensor in tensors):
        raise ModelError(f"{step.title}: moves values of a whole batch; fix the batch to one")


def _places_of_elements(step, dims, index):
    """Returns the place of each indexed value in an array of the shape `dims`, in the shape of the indices."""
    axis, rank = step.attributes.get("axis", 0), len(dims)
    fits = index.ndim == rank > 0 and -rank <= axis < rank
    rest = [pair for one, pair in enumerate(zip(index.shape, dims)) if fits and one != axis % rank]
    if not fits or any(size > have for size, have in rest) or not index.size:
        raise ModelError(f"{step.title}: indices of {show(index.shape)} do not fit {show(dims)}")
    _check_range(step, index, dims[axis])
    limited(step, index.size)
    return _places_along(dims, index % dims[axis], axis % rank)


def _check_range(step, index, sizes):
    if ((index < np.negative(sizes)) | (index >= sizes)).any():
        raise ModelError(f"{step.title}: an index is beyond its axis")


def _places_along(dims, index, axis):
    grid = [index if one == axis else places for one, places in enumerate(np.indices(index.shape, sparse=True))]
    return np.ravel_multi_index(np.broadcast_arrays(*grid), dims)


def _places_of_rows(step, dims, index):
    depth = index.shape[-1] if index.ndim else 0
    if not 0 < depth <= len(dims) or not index.size:
        raise ModelError(f"{step.title}: indices of {show(index.shape)} do not fit {show(dims)}")
    _check_range(step, index, np.array(dims[:depth]))
    limited(step, index.size // depth, *dims[depth:])
    return np.arange(prod(dims)).reshape(dims)[tuple(np.moveaxis(index % np.array(dims[:depth]), -1, 0))]


def _written(step, data, places, updates, adds):
    """Returns `data` with the values of `updates` at `places`, or with these values added. One of both may be constant."""
    if len({getattr(one, "batch", None) for one in (data, updates) if isinstance(one, SymbolicTensor)}) > 1:
        raise ModelError(f"{step.title}: data and updates have different batches")
    shape = updates.dims if isinstance(updates, SymbolicTensor) else updates.shape
    if shape != places.shape or np.unique(places).size < places.size:
        raise ModelError(f"{step.title}: updates of {show(shape)} do not fit its indices, or an index occurs twice")
    dims = data.dims if isinstance(data, SymbolicTensor) else data.shape
    limited(step, *dims)
    inside = np.zeros(dims, bool)
    inside.reshape(-1)[places] = True
    if isinstance(data, SymbolicTensor) and isinstance(updates, SymbolicTensor):
        if adds:
            return added(step, data, _spread(updates, dims, places))
        both = together(step, [data, updates])
        sample = both.index[: data.size].copy()
        sample[places] = both.index[data.size :].reshape(shape)
        return replace(data, source=both.source, index=sample)
    if isinstance(updates, SymbolicTensor):
        tensor, kept = _spread(updates, dims, places), data.astype(np.float64)
        return affine(step, tensor, shift=kept if adds else np.where(inside, 0, kept))
    shift = np.zeros(dims)
    shift.reshape(-1)[places] = updates
    return affine(step, data if adds else data.permuted(np.where(inside, -1, data.sample)), shift=shift)


def _spread(updates, dims, places):
    """Returns a tensor of the shape `dims` with zeros around `updates`."""
    sample = np.full(prod(dims), -1)
    sample[places] = updates.sample
    return updates.permuted(sample.reshape(dims))

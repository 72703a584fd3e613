"""Reductions of ONNX: sums, means, maxima and minima over axes of a sample."""

from dataclasses import replace

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap, identity
from ...ir.stage import Pool
from ..index.values import limited, reduction, whole
from ..index.views import arranged, arrangement, in_place, product_in_blocks, select
from ..registry import POOLS, operator
from .elementwise import affine
from .windows import Windows, maxima

__all__ = []

_REDUCE = ("axes", "keepdims", "noop_with_empty_axes")
_MOST_BLOCKS = 4  # blocks of channels that one stage compares


def _largest_channel(step, node):
    """Returns a node with the maximum of the channels at each position. A stage stacks blocks of channels side by side; max
    pooling over the blocks leaves one block. This is repeated until one channel remains."""
    while (count := node.shape[2]) > 1:
        height, width, _ = node.shape
        blocks = min(count, _MOST_BLOCKS)
        size = -(-count // blocks)
        starts = [min(first, count - size) for first in range(0, count, size)]  # blocks may overlap
        along = 0 if height == 1 else 1  # rows of an image stay apart, so that tiling can divide them
        limited(step, height, width, len(starts), size)
        parts = tuple(
            SumRegion(
                (select(node, np.arange(first, first + size)),),
                (height, width),
                (row * height, 0) if along == 0 else (0, row * width),
            )
            for row, first in enumerate(starts)
        )
        shape = (height * len(starts), width) if along == 0 else (height, width * len(starts))
        stacked = Linear(**step.titles, shape=(*shape, size), parts=parts)
        kernel, dilation = ((len(starts), 1), (height, 1)) if along == 0 else ((1, len(starts)), (1, width))
        pool = Pool(kernel, (height, width), dilation=dilation)
        node = Linear(**step.titles, shape=(height, width, size), parts=(identity(stacked),), pool=pool)
    return node


@operator("ReduceMin", group=POOLS, attributes=_REDUCE)
def smallest(step, tensor):
    """Handles ReduceMin: the negative of the maximum of the negative values."""
    return affine(step, reduce(step, affine(step, tensor, scale=np.array(-1.0))), scale=np.array(-1.0))


@operator("ReduceMax", "ReduceMean", "ReduceSum", group=POOLS, attributes=_REDUCE)
def reduce(step, tensor):
    """Handles ReduceMean, ReduceSum and ReduceMax over axes of a sample; see :func:`smallest` for ReduceMin."""
    if not step.integers("axes", 1) and step.attributes.get("noop_with_empty_axes", 0):
        return tensor
    axes, dims, batch = reduction(step, tensor)
    largest = step.operator in ("ReduceMax", "ReduceMin")
    if not largest and (found := _block_total(step, tensor, sorted(axes))):
        return replace(tensor.of(found[0], found[1].reshape(dims)), batch=batch)
    tensor, axes = _joined_axes(tensor, axes)
    tensor, seen, roles = arrangement(step, tensor, None if largest else _features(tensor, axes))
    gone = [axis in axes for axis in roles]
    size = tuple(1 if there else length for there, length in zip(gone[1:], seen.source.shape))
    kernel = tuple(length if there else 1 for there, length in zip(gone[1:], seen.source.shape))
    at = Windows(kernel, (1, 1), (1, 1), (0, 0), (0, 0), size)
    if largest:
        node, channels = maxima(step, seen.source, at), seen.channels
        if gone[0]:
            node, channels = _largest_channel(step, node), np.arange(1)
    else:
        node, channels = _total(step, seen, at, gone[0])
    # The node keeps the order of the source's positions; the index map has the order of the tensor's.
    rows, columns = (np.arange(1) if there else places for there, places in zip(gone[1:], (seen.rows, seen.columns)))
    result = tensor.of(node, in_place(whole(node)[np.ix_(channels, rows, columns)], tensor.dims, roles))
    return replace(result, dims=dims, batch=batch)


def _joined_axes(tensor, axes):
    """Joins neighbouring axes of a tensor that are all reduced, or all kept. Returns `(tensor, axes)` with at most three axes, or
    the arguments if the tensor has at most three axes apart from the batch, or too many even then."""
    kept = [axis for axis, size in enumerate(tensor.dims) if size > 1]
    if len(kept) <= 3:
        return tensor, axes
    groups = [[kept[0]]]
    for axis in kept[1:]:
        if (axis in axes) == (groups[-1][0] in axes):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) > 3:
        return tensor, axes
    sizes = [int(np.prod([tensor.dims[axis] for axis in group])) for group in groups]
    found = {place + 1 for place, group in enumerate(groups) if group[0] in axes}
    return tensor.permuted(tensor.sample.reshape(1, *sizes), None if tensor.batch is None else 0), found


def _features(tensor, axes):
    """Returns the last axis of a tensor if this axis holds the features of a sequence. Otherwise returns None. Three conditions
    must hold: the node is an input whose layout is not fixed yet, the tensor has two axes with several values, and only the last
    axis is reduced."""
    last, sizes = len(tensor.dims) - 1, [size for size in tensor.dims if size > 1]
    return last if tensor.source.loose and {*axes} == {last} and len(sizes) == 2 else None


def _block_total(step, tensor, axes):
    """Returns `(node, index map)` of sums or means over values that form blocks of channels instead of a window. Returns None if
    the values form a window, or if they do not form blocks."""
    if next(arranged(tensor, _features(tensor, axes)), None):
        return None
    rest = [axis for axis in range(len(tensor.dims)) if axis not in axes]
    count = int(np.prod([tensor.dims[axis] for axis in axes]))
    moved = tensor.permuted(tensor.sample.transpose(*rest, *axes).reshape(-1, count), None)
    return product_in_blocks(step, moved, np.full((count, 1), 1 if step.operator == "ReduceSum" else 1 / count), exact=True)


def _total(step, seen, at, across):
    have = seen.source.shape[2]
    count = np.prod(at.kernel) * (have if across else 1)
    share = 1.0 if step.operator == "ReduceSum" else 1 / float(count)
    weights = np.full((*at.kernel, have, 1) if across else (*at.kernel, 1, have), share)
    one = Tap(seen.source, weights, groups=1 if across else have, exact=True)
    node = Linear(**step.titles, shape=(*at.size, weights.shape[3]), parts=(SumRegion((one,), at.size),))
    return node, np.arange(1) if across else seen.channels

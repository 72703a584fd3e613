"""Windowed operators of ONNX: convolutions and pooling of a tensor (batch, channels[, height], width)."""

from dataclasses import dataclass, replace

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap, identity
from ...ir.errors import ModelError
from ...ir.stage import Pool, span
from ..index.phases import phased_convolution
from ..index.pixels import spread
from ..index.values import LOWEST, SymbolicTensor, limited, show, whole
from ..index.views import copied, slide, tap, view
from ..registry import LINEAR, MICROSOFT, POOLS, operator
from .activations import apply_operator

__all__ = ["Windows", "maxima"]


@dataclass(frozen=True)
class Windows:
    """The geometry of windows along y and x. Each member is (int, int). `begin` and `end` are the padding before and after the
    values; `size` is the number of windows."""

    kernel: tuple
    stride: tuple
    dilation: tuple
    begin: tuple
    end: tuple
    size: tuple  # number of windows


def _pixels(step, tensor):
    """Returns `(index, axes)`: the index map of a tensor as (channel, y, x), and the number of its spatial axes, 1 or 2."""
    rank = len(tensor.dims)
    if rank not in (3, 4) or tensor.batch not in (0, None) or tensor.dims[0] != 1:
        raise ModelError(
            f"{step.title}: its input of shape {show(tensor)} is not (batch, channels, height, width) or (batch, channels, width)"
        )
    return tensor.index.reshape(tensor.dims[1], 1 if rank == 3 else tensor.dims[2], tensor.dims[-1]), rank - 2


def _numbers(step, name, default, least, axes):
    """Returns the list of numbers in an attribute, or `default` if the attribute is left out. Raises an error if a number is
    below `least`, or if the length of the list does not fit the number of spatial axes."""
    values = step.integers(name) or default
    if len(values) != len(default):
        raise ModelError(f"{step.title}: {name} {values} has {len(values)} numbers; {axes} spatial axes need {len(default)}")
    if min(values) < least:
        remedy = "; cut with a Slice before it" if name == "pads" else ""
        raise ModelError(f"{step.title}: {name} {values} must not be below {least}{remedy}")
    return values


def _windows(step, have, axes, kernel, ceil=False):
    """Returns the windows that the node's attributes define over an input of size `have` (height, width). `kernel` is the size of
    the weights, or None for pooling. `ceil` : ceil_mode of pooling."""
    pooled = kernel is None

    def numbers(name, default):
        return _numbers(step, name, default, 0, axes)

    kernel = numbers("kernel_shape", kernel) if kernel is not None else step.integers("kernel_shape")
    stride, dilation = numbers("strides", [1] * axes), numbers("dilations", [1] * axes)
    pads = numbers("pads", [0] * (2 * axes))
    if not kernel or len(kernel) != axes or min(*kernel, *stride, *dilation) < 1:
        raise ModelError(
            f"{step.title}: kernel_shape {kernel}, strides {stride} or dilations {dilation} is missing, 0, or does "
            f"not fit {axes} spatial axes"
        )
    begin, end, size = [], [], []
    mode = step.attributes.get("auto_pad", b"NOTSET").decode() or "NOTSET"
    for axis in range(axes):
        length, step_length = have[axis - axes], stride[axis]
        reach = span(1, step_length, kernel[axis], dilation[axis])
        if mode.startswith("SAME"):
            count = -(-length // step_length)
            total = (count - 1) * step_length + reach - length
            if pooled and (dilation[axis] > 1 or total < 0):
                raise ModelError(
                    f"{step.title}: auto_pad {mode} with dilations, or with strides that skip values, which "
                    f"ONNX interpreters read differently; write explicit pads"
                )
            total = max(0, total)
            before = total - total // 2 if mode == "SAME_LOWER" else total // 2
            after = total - before
        else:
            before, after = (pads[axis], pads[axis + axes]) if mode == "NOTSET" else (0, 0)
            if pooled and max(before, after) >= kernel[axis]:
                raise ModelError(
                    f"{step.title}: pads {pads} are not smaller than its window {kernel}: a window may cover padding only"
                )
            room = length + before + after - reach
            count = (-(-room // step_length) if ceil else room // step_length) + 1
            if ceil and mode == "VALID" and room % step_length:
                raise ModelError(
                    f"{step.title}: auto_pad VALID with ceil_mode, which ONNX interpreters read differently; write explicit pads"
                )
            if ceil and (count - 1) * step_length >= length + before:
                count -= 1  # a window must not start beyond the end
        if count < 1 or length + before + after < reach and not ceil:
            raise ModelError(
                f"{step.title}: its window of {reach} does not fit into {length} values and a padding of {before} and {after}"
            )
        begin, end, size = [*begin, before], [*end, after], [*size, count]

    def two(values, missing):
        return (missing, *values) if axes == 1 else tuple(values)

    return Windows(two(kernel, 1), two(stride, 1), two(dilation, 1), two(begin, 0), two(end, 0), two(size, 1))


def _result(tensor, node, axes, channels=None):
    """Returns the tensor of a node's values with `axes` spatial axes. `channels` has the node's channel for each channel of the
    result. Default: all channels in order."""
    index = whole(node) if channels is None else whole(node)[channels]
    return tensor.of(node, index.reshape(1, *(index.shape if axes == 2 else (index.shape[0], index.shape[2]))))


_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@operator("Conv", group=LINEAR, on_constants=False, attributes=_CONV)
@operator("FusedConv", group=LINEAR, domain=MICROSOFT, on_constants=False, attributes=(*_CONV, "activation", "activation_params"))
def convolution(step, tensor):
    if step.arguments[0] is not tensor or any(isinstance(value, SymbolicTensor) for value in step.arguments[1:3]):
        raise ModelError(f"{step.title}: its weights must be constant")
    weights = step.arguments[1].astype(np.float64)
    index, axes = _pixels(step, tensor)
    groups = step.attributes.get("group", 1)
    if (
        weights.ndim != axes + 2
        or groups < 1
        or weights.shape[1] * groups != len(index)
        or weights.shape[0] % groups
        or not weights.size
    ):
        raise ModelError(
            f"{step.title}: weights of {show(weights.shape)} in {groups} groups do not fit the input of {show(tensor)}"
        )
    kernel = step.integers("kernel_shape")
    if kernel not in (None, list(weights.shape[2:])):
        raise ModelError(f"{step.title}: kernel_shape {kernel} does not fit its weights of {show(weights.shape)}")
    at = _windows(step, index.shape[1:], axes, list(weights.shape[2:]))
    weights = weights.reshape(*weights.shape[:2], *at.kernel).transpose(2, 3, 1, 0)
    limited(step, 2, *at.size, weights.shape[3])  # twice: a tensor has at most half as many values as weights may have
    bias = step.argument(2)
    if bias is not None and bias.shape != (weights.shape[3],):
        raise ModelError(f"{step.title}: bias of {show(bias.shape)} and weights of {show(step.arguments[1].shape)} do not fit")
    node, places = _sums(step, tensor, index, weights, at, groups)
    result = _biased(_placed(tensor, node, places, axes), bias)
    function = step.attributes.get("activation", b"").decode()
    if len(step.arguments) > 3 and step.arguments[3] is not None:
        raise ModelError(f"{step.title}: its fourth input is not supported; export the model without optimisation")
    return apply_operator(step, result, function) if function else result


@operator("ConvTranspose", group=LINEAR, on_constants=False, attributes=(*_CONV, "output_padding", "output_shape"))
def transposed(step, tensor):
    """Handles ConvTranspose as one convolution for each phase of the output. The number of phases in each direction is the
    stride."""
    if step.arguments[0] is not tensor or any(isinstance(value, SymbolicTensor) for value in step.arguments[1:]):
        raise ModelError(f"{step.title}: its weights must be constant")
    weights = step.arguments[1].astype(np.float64)
    index, axes = _pixels(step, tensor)
    groups = step.attributes.get("group", 1)
    if weights.ndim != axes + 2 or groups < 1 or len(weights) != len(index) or len(weights) % groups or not weights.size:
        raise ModelError(
            f"{step.title}: weights of {show(weights.shape)} in {groups} groups do not fit the input of {show(tensor)}"
        )
    kernel = step.integers("kernel_shape")
    if kernel not in (None, list(weights.shape[2:])):
        raise ModelError(f"{step.title}: kernel_shape {kernel} does not fit its weights of {show(weights.shape)}")
    at = _spread_windows(step, index.shape[1:], axes, list(weights.shape[2:]))
    # (inputs, outputs / groups, ...) -> (..., inputs / groups, outputs), the layout of a convolution
    split = weights.reshape(groups, -1, weights.shape[1], *at.kernel).transpose(3, 4, 1, 0, 2)
    weights = split.reshape(*at.kernel, split.shape[2], -1)
    limited(step, 2, *at.size, weights.shape[3])  # twice: a tensor has at most half as many values as weights may have
    bias = step.argument(2)
    if bias is not None and bias.shape != (weights.shape[3],):
        raise ModelError(f"{step.title}: bias of {show(bias.shape)} and weights of {show(step.arguments[1].shape)} do not fit")
    view(tensor, index)  # raises Relayout if the layout of the input is not known yet
    if step.training:
        return _biased(_placed(tensor, *_with_zeros(step, tensor, index, weights, at, groups), axes), bias)
    found = phased_convolution(step, tensor, index, weights, at, groups, transposed=True)
    if found is None:
        node = copied(step, tensor, index)
        found = phased_convolution(step, tensor.of(node, whole(node)), whole(node), weights, at, groups, transposed=True)
    return _biased(_placed(tensor, *found, axes), bias)


def _with_zeros(step, tensor, index, weights, at, groups):
    """Returns `(node, index map)` of a ConvTranspose as a convolution of pixels with zeros between them, which has each weight
    once."""
    node = spread(step, tensor, index, at.stride)
    begin = tuple((size - 1) * apart - before for size, apart, before in zip(at.kernel, at.dilation, at.begin))
    around = Windows(at.kernel, (1, 1), at.dilation, begin, (0, 0), at.size)
    return _sums(step, tensor.of(node, whole(node)), whole(node), weights[::-1, ::-1], around, groups)


def _spread_windows(step, have, axes, kernel):
    """Returns the windows of a ConvTranspose. `begin` is the number of values cropped above and at the left, `size` the size of
    the result."""

    def numbers(name, default, least):
        return _numbers(step, name, default, least, axes)

    stride, dilation = numbers("strides", [1] * axes, 1), numbers("dilations", [1] * axes, 1)
    pads, more = numbers("pads", [0] * (2 * axes), 0), numbers("output_padding", [0] * axes, 0)
    wanted = step.integers("output_shape")
    mode = step.attributes.get("auto_pad", b"NOTSET").decode() or "NOTSET"
    if mode.startswith("SAME") and wanted is None:
        wanted = [length * count for length, count in zip(have[-axes:], stride)]
    if wanted is not None and len(wanted) != axes:
        raise ModelError(f"{step.title}: output_shape {wanted} does not fit {axes} spatial axes")
    if any(extra >= max(*sizes) for extra, *sizes in zip(more, stride, dilation)):
        raise ModelError(f"{step.title}: output_padding {more} is not smaller than strides {stride} or dilations {dilation}")
    begin, size = [], []
    for axis in range(axes):
        reach = stride[axis] * (have[axis - axes] - 1) + more[axis] + span(1, 1, kernel[axis], dilation[axis])
        before, after = (pads[axis], pads[axis + axes]) if mode == "NOTSET" else (0, 0)
        if wanted is not None:
            cut = reach - wanted[axis]
            if cut < 0:
                raise ModelError(
                    f"{step.title}: extends {reach} values to {wanted[axis]}, which ONNX interpreters read differently; "
                    f"leave out output_shape or auto_pad, and give output_padding"
                )
            before, after = (cut // 2, cut - cut // 2) if mode == "SAME_UPPER" else (cut - cut // 2, cut // 2)
        if reach - before - after < 1:
            raise ModelError(f"{step.title}: pads {pads} leave nothing of {reach} values")
        begin, size = [*begin, before], [*size, reach - before - after]

    def two(values, missing):
        return (missing, *values) if axes == 1 else tuple(values)

    return Windows(two(kernel, 1), two(stride, 1), two(dilation, 1), two(begin, 0), (0, 0), two(size, 1))


def _sums(step, tensor, index, weights, at, groups):
    """Returns `(node, index map (output, y, x))` of a convolution without its bias. `index` is the input's index map (channel, y,
    x), `at` the windows."""
    geometry = {"stride": at.stride, "dilation": at.dilation, "padding": at.begin}
    seen = view(tensor, index)
    one = None if seen is None else tap(step, seen, weights, at.size, groups, **geometry)
    if one is None:
        found = phased_convolution(step, tensor, index, weights, at, groups)
        if found:
            return found
        one = Tap(copied(step, tensor, index), weights, groups=groups, **geometry)
    node = Linear(**step.titles, shape=(*at.size, weights.shape[3]), parts=(SumRegion((one,), at.size),))
    return node, whole(node)


def _placed(tensor, node, places, axes):
    """Returns the tensor of an index map (channel, y, x) into a node, with `axes` spatial axes."""
    return tensor.of(node, places.reshape(1, *(places.shape if axes == 2 else (places.shape[0], places.shape[2]))))


def _biased(tensor, bias):
    """Adds a bias for each channel of a tensor to the convolution that computes it. Several channels of the node may belong to
    one channel of the tensor."""
    if bias is not None:
        node = tensor.source
        node.bias = np.zeros(node.shape[2])
        channels = np.where(tensor.index >= 0, tensor.index % node.shape[2], 0)
        node.bias[channels] = np.repeat(bias.astype(np.float64), tensor.size // len(bias))
    return tensor


def _channelwise(step, tensor, index):
    """Returns `(node, channels)` for an operator that is applied to each channel separately. The node has exactly the values of
    an index map (channel, y, x). `channels` are the channels of the node in the order of the index map. The values are copied if
    no node has this form."""
    seen = view(tensor, index)
    if seen is not None and seen.complete:
        return seen.source, seen.channels
    node = copied(step, tensor, index)
    return node, np.arange(len(index))


_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


@operator("AveragePool", group=POOLS, on_constants=False, attributes=(*_POOL, "count_include_pad"))
@operator("MaxPool", group=POOLS, on_constants=False, attributes=(*_POOL, "storage_order"))  # the last only affects Indices
@operator("GlobalMaxPool", "GlobalAveragePool", group=POOLS, on_constants=False)
def pool(step, tensor):
    """Handles MaxPool, AveragePool and their global forms."""
    if len(step.node.output) > 1 and step.node.output[1]:
        raise ModelError(f"{step.title}: its second output, the indices of the maxima, is not supported; leave it out")
    index, axes = _pixels(step, tensor)
    if step.operator.startswith("Global"):
        size = index.shape[1:]
        at = Windows(size, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1))
    else:
        at = _windows(step, index.shape[1:], axes, None, ceil=bool(step.attributes.get("ceil_mode", 0)))
    limited(step, *at.size, len(index))
    if step.operator.endswith("MaxPool"):
        index, at = _without_lowest(step, index, at)
        source, channels = _channelwise(step, tensor, index)
        return _result(tensor, maxima(step, source, at), axes, channels)
    node, channels = _average(step, tensor, index, at, bool(step.attributes.get("count_include_pad", 0)))
    return _result(tensor, node, axes, channels)


def _without_lowest(step, index, at):
    """Removes padding by the lowest number from the input of a MaxPool. Returns `(index map, windows)`: the index map without
    the padding, and windows that give the same maxima over the remaining values."""
    there = index != LOWEST
    if there.all():
        return index, at
    rows, columns = np.flatnonzero(there.any((0, 2))), np.flatnonzero(there.any((0, 1)))
    if not rows.size or not there[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all():
        raise ModelError(f"{step.title}: its input has the lowest number as padding inside, or has no other values")
    at = replace(at, begin=(at.begin[0] + int(rows[0]), at.begin[1] + int(columns[0])))
    return index[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], at


def maxima(step, source, at):
    """Returns a node with the maximum of each window over the node `source`."""
    for have, count, stride, kernel, dilation, before in zip(source.shape, at.size, at.stride, at.kernel, at.dilation, at.begin):
        reads = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - before
        if not ((reads >= 0) & (reads < have)).any(axis=1).all():
            raise ModelError(f"{step.title}: one of its windows covers padding only")
    return Linear(
        **step.titles,
        shape=(*at.size, source.shape[2]),
        parts=(identity(source),),
        pool=Pool(at.kernel, at.size, at.stride, at.dilation, at.begin),
    )


def _counts(have, count, stride, kernel, dilation, before, after, padded):
    """Returns, for each of `count` windows along one axis, the number of values that the window averages. If `padded` is True,
    padding counts as values."""
    reads = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation
    low, high = (0, before + have + after) if padded else (before, before + have)
    return ((reads >= low) & (reads < high)).sum(axis=1)


def _average(step, tensor, index, at, padded):
    """Returns `(node, channels)` of an average pooling. `channels` are the channels of the node in the order of the result. The
    node has one part for each set of windows that average the same number of values."""
    seen = view(tensor, index)
    full = seen is not None and np.array_equal(np.sort(seen.channels), np.arange(seen.source.shape[2]))
    counts = [
        _counts(*arguments, padded)
        for arguments in zip(index.shape[1:], at.size, at.stride, at.kernel, at.dilation, at.begin, at.end)
    ]
    if not all(count.all() for count in counts):
        raise ModelError(f"{step.title}: one of its windows covers padding only")
    if not full or any(
        slide(seen, size, at.kernel, at.stride, at.dilation, begin) is None for size, _, begin in _pieces(at, counts)
    ):
        node = copied(step, tensor, index)
        seen = view(tensor.of(node, whole(node)), whole(node))
    channels = seen.source.shape[2]
    parts = []
    for size, origin, begin in _pieces(at, counts):
        share = 1 / (float(counts[0][origin[0]]) * float(counts[1][origin[1]]))
        one = Tap(
            seen.source,
            np.full((*at.kernel, 1, channels), share),
            groups=channels,
            exact=True,
            **slide(seen, size, at.kernel, at.stride, at.dilation, begin),
        )
        parts.append(SumRegion((one,), size, origin))
    return Linear(**step.titles, shape=(*at.size, channels), parts=tuple(parts)), seen.channels


def _pieces(at, counts):
    """Divides the windows into rectangles in which all windows average the same number of values. Yields (size, origin, padding)
    of each rectangle."""
    cuts = [[0, *(np.flatnonzero(np.diff(count)) + 1).tolist(), len(count)] for count in counts]
    for top, bottom in zip(cuts[0], cuts[0][1:]):
        for left, right in zip(cuts[1], cuts[1][1:]):
            yield (
                (bottom - top, right - left),
                (top, left),
                (at.begin[0] - top * at.stride[0], at.begin[1] - left * at.stride[1]),
            )

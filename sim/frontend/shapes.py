"""ONNX' operators that only say which value stands where: they cost nothing, but for Concat, which may have to copy."""

from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto, helper

from ..fusion.nodes import Joint, Linear, Part, Unknown
from ..ir.errors import ModelError
from .values import FLOATS, INTEGERS, LIMIT, LOWEST, Flow, limited, show, whole
from .views import arranged, in_place, in_roles, roles_of, select, slide, view

__all__ = ["keep", "cast_like", "transpose", "cut", "split", "gather", "pad", "concat"]

#: An end of a Slice that stands for that of any axis; exporters write this or the largest of 64 bits.
_NO_END = (1 << 31) - 1


def keep(step, flow):
    """Identity, Dropout, Cast, CastLike."""
    if step.operator in ("Identity", "Dropout"):
        return flow
    if step.operator == "CastLike":
        like = step.arguments[1]
        if isinstance(like, Flow):
            _check_like(step, like)
            return replace(flow, integer=False)
        kind = helper.np_dtype_to_tensor_dtype(like.dtype)
    else:
        kind = step.attributes["to"]
    if kind in INTEGERS and not flow.integer:
        raise ModelError(f"{step.title}: a Cast to integers is not supported; remove it")
    if kind not in (*FLOATS, *INTEGERS):
        raise ModelError(f"{step.title}: a Cast to this type is not supported; use float32")
    if kind in INTEGERS and kind not in (TensorProto.INT32, TensorProto.INT64):
        raise ModelError(f"{step.title}: a Cast to small integers is not supported; use float32")
    return replace(flow, integer=kind in INTEGERS)


def _check_like(step, like):
    """Refuses a cast to the type of a flow that does not hold floating-point numbers: which one it is, a Flow does not say."""
    if like.integer or isinstance(like.source, Unknown) and like.source.truth:
        raise ModelError(f"{step.title}: a Cast to integers, or to true and false, is not supported; remove it")


def cast_like(step, like):
    """A constant with the type of a Flow, which is a float."""
    _check_like(step, like)
    constant = step.arguments[0]
    return constant if constant.dtype.kind == "f" else constant.astype(np.float32)


def transpose(step, flow):
    axes = list(step.attributes.get("perm", range(len(flow.dims))[::-1]))
    return flow.turned(flow.sample.transpose(axes), None if flow.batch is None else axes.index(flow.batch))


# Some of the values

def _own(step, flow, axis, what):
    """The place of an axis that is not the batch's."""
    axis %= len(flow.dims)
    if axis == flow.batch:
        raise ModelError(f"{step.title}: {what} along axis {axis} of {show(flow)}, the batch; a sample may only depend on itself")
    return axis


def cut(step, flow):
    """Slice."""
    rank = len(flow.dims)
    starts, ends = step.integers("starts", 1), step.integers("ends", 2)
    axes, steps = step.integers("axes", 3), step.integers("steps", 4)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    sample = flow.sample
    for axis, start, end, stride in zip(axes, starts, ends, steps):
        if axis % rank == flow.batch and _whole_batch(flow, start, end, stride):
            continue
        axis = _own(step, flow, axis, "cuts")
        size = flow.dims[axis]
        places = range(size)[slice(start, end if end >= -size or stride > 0 else None, stride)]
        if not places:
            raise ModelError(f"{step.title}: nothing is left of axis {axis} of {show(flow)}")
        sample = sample.take(places, axis=axis)
    return flow.turned(sample)


def _whole_batch(flow, start, end, stride):
    """Whether a Slice takes all samples, of an open batch by an end that no batch reaches."""
    largest = _NO_END if flow.is_open else flow.dims[flow.batch] * flow.samples
    return stride == 1 and end >= largest and (start == 0 or start <= -largest)


def split(step, flow):
    axis = _own(step, flow, step.attributes.get("axis", 0), "splits")
    size, parts = flow.dims[axis], len(step.node.output)
    sizes = step.integers("split", 1)
    if sizes is None:
        sizes = [-(-size // parts)] * (parts - 1)
        sizes.append(size - sum(sizes))
    if min(sizes) < 1:
        raise ModelError(f"{step.title}: {size} values can't be split into {sizes}")
    return [flow.turned(part) for part in np.split(flow.sample, np.cumsum(sizes)[:-1], axis=axis)]


def gather(step, flow):
    if step.arguments[0] is not flow or isinstance(step.arguments[1], Flow):
        raise ModelError(f"{step.title}: is only supported with constant indices")
    axis, index = _own(step, flow, step.attributes.get("axis", 0), "picks"), step.arguments[1]
    if not index.size:
        raise ModelError(f"{step.title}: picks nothing")
    limited(step, flow.size, index.size)
    batch = flow.batch if flow.batch is None or flow.batch < axis else flow.batch + index.ndim - 1
    return flow.turned(flow.sample.take(index, axis=axis), batch)


def pad(step, flow):
    mode = step.attributes.get("mode", b"constant").decode()
    pads = step.integers("pads", 1)
    value = step.attributes.get("value", 0.0) if step.opset < 11 else step.argument(2)
    axes = step.integers("axes", 3)
    axes = list(range(len(flow.dims))) if axes is None else axes
    fill = -1 if value is None or np.all(np.asarray(value) == 0) else LOWEST
    if isinstance(value, Flow) or fill == LOWEST and not np.all(np.asarray(value) <= np.finfo(np.float32).min):
        raise ModelError(f"{step.title}: pads with {value}; only 0 is supported, and before MaxPool the lowest number")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ModelError(f"{step.title}: mode {mode} is not supported")
    sample, widths = flow.sample, [(0, 0)] * flow.sample.ndim
    for axis, before, after in zip(axes, pads, pads[len(axes):]):
        if (before, after) == (0, 0):
            continue
        axis = _own(step, flow, axis, "pads")
        size = sample.shape[axis]
        if mode != "constant" and min(before, after) < 0:
            raise ModelError(f"{step.title}: mode {mode} with negative pads is not supported; cut with a Slice")
        sample = sample.take(range(max(0, -before), size - max(0, -after)), axis=axis)
        widths[axis] = (max(0, before), max(0, after))
    if not sample.size:
        raise ModelError(f"{step.title}: nothing is left of {show(flow)}")
    limited(step, *(size + sum(width) for size, width in zip(sample.shape, widths)))
    options = {"constant_values": fill} if mode == "constant" else {}
    return flow.turned(np.pad(sample, widths, mode=mode, **options))


def concat(step, flow):
    flows = list(step.arguments)
    inside = _own(step, flow, step.attributes["axis"], "joins")
    for position, value in enumerate(flows):
        if not isinstance(value, Flow):
            flows[position] = _zeros(step, flow, value)
    rest = {(one.batch, *np.delete(one.dims, inside)) for one in flows if len(one.dims) == len(flow.dims)}
    if len(rest) > 1 or any(len(one.dims) != len(flow.dims) for one in flows):
        raise ModelError(f"{step.title}: shapes {', '.join(show(one) for one in flows)} do not fit")
    limited(step, sum(one.size for one in flows))
    if len({one.source for one in flows}) == 1:
        together = flow.turned(np.concatenate([one.sample for one in flows], axis=inside))
        if together.sample.ndim < 3 or next(arranged(together), None):
            return together
    if any(isinstance(one.source, Joint) for one in flows):
        return _side_by_side(step, flows, inside)
    shape = list(flow.sample.shape)
    shape[inside] = sum(one.sample.shape[inside] for one in flows)
    for roles in roles_of(shape):
        seen = [view(one, in_roles(one.sample, roles)) for one in flows]
        if inside in roles and None not in seen:
            node = _joined(step, seen, roles.index(inside))
            if node is not None:
                sample = np.concatenate([one.sample for one in flows], axis=inside)
                return flow.of(node, in_place(whole(node), sample.shape, roles))
    return _side_by_side(step, flows, inside)


def _zeros(step, flow, constant):
    """A constant, which must be 0, as values of this batch."""
    if constant.any():
        raise ModelError(f"{step.title}: joins a constant that is not 0, which is not supported")
    dims = list(constant.shape)
    if flow.batch is not None and len(dims) > flow.batch:
        if dims[flow.batch] != flow.dims[flow.batch] * (flow.samples or 0):
            raise ModelError(f"{step.title}: shapes {show(flow)} and {show(dims)} do not fit: the constant has its own batch")
        dims[flow.batch] //= flow.samples
    return flow.turned(np.full(dims, -1))


def _joined(step, seen, role):
    """A node that holds Views one behind the other: along the channels by adding up, along y or x by parts; None if one has to
    be copied, or needs too many weights for that."""
    sizes = [(len(one.rows), len(one.columns)) for one in seen]
    places = [slide(one, size, (1, 1)) for one, size in zip(seen, sizes)]
    if None in places:
        return None
    if role == 0:
        channels, taps, first = sum(len(one.channels) for one in seen), [], 0
        for one, place in zip(seen, places):
            if one.source.shape[2] * channels > LIMIT:
                return None
            chosen = np.full(channels, -1)
            chosen[first:first + len(one.channels)] = one.channels
            first += len(one.channels)
            taps.append(select(one.source, chosen, **place))
        return Linear(**step.titles, shape=(*sizes[0], channels), parts=(Part(tuple(taps), sizes[0]),))
    parts, origin = [], [0, 0]
    for one, size, place in zip(seen, sizes, places):
        parts.append(Part((select(one.source, one.channels, **place),), size, tuple(origin)))
        origin[role - 1] += size[role - 1]
    size = [sizes[0][0], sizes[0][1]]
    size[role - 1] = origin[role - 1]
    return Linear(**step.titles, shape=(*size, len(seen[0].channels)), parts=tuple(parts))


def _sources(flow):
    return flow.source.sources if isinstance(flow.source, Joint) else (flow.source,)


def _side_by_side(step, flows, inside):
    """Values of several nodes that have no arrangement in common."""
    sources = list(dict.fromkeys(source for one in flows for source in _sources(one)))
    first = dict(zip(sources, np.cumsum([0, *(prod(source.shape) for source in sources)]).tolist()))
    samples = []
    for one in flows:
        index, at = np.full(one.size, -1), 0
        for source in _sources(one):
            size = prod(source.shape)
            there = (one.index >= at) & (one.index < at + size)
            index[there] = one.index[there] - at + first[source]
            at += size
        samples.append(index.reshape(one.sample.shape))
    node = Joint(**step.titles, shape=(1, 1, sum(prod(source.shape) for source in sources)), sources=tuple(sources))
    return flows[0].of(node, np.concatenate(samples, axis=inside))

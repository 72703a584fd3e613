"""ONNX' operators that only say which value stands where: they cost nothing, but for Concat, which may have to copy."""

from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto, helper

from .drafts import Joint, Linear, Part
from .network import ModelError
from .onnx_elementwise import broadcast
from .onnx_flow import ANY_BATCH, FLOATS, INTEGERS, LOWEST, BatchFixed, Flow, common_shape, limited, sample_axis, show, whole
from .onnx_views import arranged, in_place, in_roles, roles_of, select, slide, view

__all__ = ["keep", "shape_of", "reshape", "transpose", "expand", "cut", "split", "gather", "pad", "concat"]


def keep(step, flow):
    """Identity, Dropout, Cast, CastLike."""
    if step.operator == "Dropout" and step.argument(2) is not None and step.arguments[2].any():
        raise ModelError(f"{step.title}: must be exported for inference, not for training")
    if step.operator in ("Identity", "Dropout"):
        return flow
    if step.operator == "CastLike":
        like = step.arguments[1]
        if isinstance(like, Flow):
            return flow
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


def shape_of(step, flow):
    """Shape and Size."""
    if step.operator == "Size":
        return np.array(prod(flow.dims), dtype=np.int64)
    start, end = step.attributes.get("start", 0), step.attributes.get("end")
    return np.array(flow.dims[start:end], dtype=np.int64)


def reshape(step, flow):
    """Flatten, Reshape, Squeeze, Unsqueeze."""
    dims, operator = flow.dims, step.operator
    fixed = None                # the batch, if it is written out
    if operator == "Flatten":
        axis = step.attributes.get("axis", 1)
        axis += len(dims) if axis < 0 else 0
        target = [prod(dims[:axis]), prod(dims[axis:])]
    elif operator == "Reshape":
        shape = step.integers("shape", 1)
        zero = step.attributes.get("allowzero", 0)
        target = [dims[i] if size == 0 and not zero else size for i, size in enumerate(shape)]
        if target.count(-1) > 1:
            raise ModelError(f"{step.title}: two open sizes in {show(shape)}")
        if -1 in target:
            fixed = target[0]
            target[target.index(-1)] = prod(dims) // max(1, -prod(target))
    else:
        axes = step.integers("axes", 1)
        if operator == "Squeeze":
            axes = [axis for axis, size in enumerate(dims) if size == 1] if axes is None else axes
            axes = {axis % len(dims) for axis in axes}
            target = [size for axis, size in enumerate(dims) if axis not in axes]
        else:
            rank = len(dims) + len(axes)
            axes, rest = {axis % rank for axis in axes}, iter(dims)
            target = [1 if axis in axes else next(rest) for axis in range(rank)]
    fits = prod(target) == prod(dims) and min(target, default=1) > 0
    mixed = sample_axis(target, flow.size) is None and target[:1] < [ANY_BATCH]
    if not fits or mixed:
        raise BatchFixed(f"{step.title}: shape {show(dims)} can't become {show(target)}",
                         fixed or (target[0] if fits else prod(target) // flow.size))
    return replace(flow, dims=tuple(target))


def transpose(step, flow):
    axes = list(step.attributes.get("perm", range(len(flow.dims))[::-1]))
    if sorted(axes) != list(range(len(flow.dims))):
        raise ModelError(f"{step.title}: perm {axes} does not fit the shape {show(flow.dims)}")
    target = tuple(flow.dims[axis] for axis in axes)
    # Axes of size 1 may go anywhere.
    kept = [axis for axis, size in enumerate(flow.dims) if size != 1]
    moved = [kept.index(axis) for axis in axes if axis in kept]
    if moved == sorted(moved):
        return replace(flow, dims=target)
    sizes = tuple(flow.dims[axis] for axis in kept)
    first = sample_axis(sizes, flow.size)
    if first is None or moved[:first] != list(range(first)):
        raise ModelError(f"{step.title}: moves the batch; only a sample's own axes may be transposed")
    inside = [axis - first for axis in moved[first:]]
    return replace(flow, dims=target, index=flow.index.reshape(sizes[first:]).transpose(inside).reshape(-1))


def _inside(step, flow, axis, what):
    """An axis of the tensor as one of the sample."""
    rank = len(flow.dims)
    if not -rank <= axis < rank or flow.first is None or axis % rank < flow.first:
        raise ModelError(f"{step.title}: {what} along axis {axis} of {show(flow.dims)}, which is not one of a sample's own")
    return axis % rank - flow.first


def expand(step, flow):
    return broadcast(step, flow, common_shape(step, flow.dims, tuple(step.integers("shape", 1))))


def cut(step, flow):
    """Slice."""
    rank = len(flow.dims)
    starts, ends = step.integers("starts", 1), step.integers("ends", 2)
    axes = step.integers("axes", 3) or list(range(len(starts)))
    steps = step.integers("steps", 4) or [1] * len(starts)
    sample = flow.sample
    for axis, start, end, stride in zip(axes, starts, ends, steps):
        size = flow.dims[axis]
        places = range(size)[slice(start, end if end >= -size or stride > 0 else None, stride)]
        if places == range(size):
            continue
        inside = _inside(step, flow, axis, "cuts")
        if not places:
            raise ModelError(f"{step.title}: nothing is left of axis {axis % rank} of {show(flow.dims)}")
        sample = sample.take(places, axis=inside)
    return flow.turned(sample)


def split(step, flow):
    axis = step.attributes.get("axis", 0)
    inside = _inside(step, flow, axis, "splits")
    size, parts = flow.dims[axis], len(step.node.output)
    sizes = step.integers("split", 1)
    if sizes is None:
        sizes = [-(-size // parts)] * (parts - 1)
        sizes.append(size - sum(sizes))
    if sum(sizes) != size or min(sizes) < 1:
        raise ModelError(f"{step.title}: {size} values can't be split into {sizes}")
    return [flow.turned(part) for part in np.split(flow.sample, np.cumsum(sizes)[:-1], axis=inside)]


def gather(step, flow):
    if step.arguments[0] is not flow or isinstance(step.arguments[1], Flow):
        raise ModelError(f"{step.title}: is only supported with constant indices")
    axis = step.attributes.get("axis", 0)
    inside = _inside(step, flow, axis, "picks")
    limited(step, flow.size, step.arguments[1].size)
    return flow.turned(flow.sample.take(step.arguments[1], axis=inside))


def pad(step, flow):
    mode = step.attributes.get("mode", b"constant").decode()
    pads = step.integers("pads", 1)
    value = step.attributes.get("value", 0.0) if step.opset < 11 else step.argument(2)
    axes = step.integers("axes", 3) or list(range(len(flow.dims)))
    fill = -1 if value is None or np.all(np.asarray(value) == 0) else LOWEST
    if isinstance(value, Flow) or fill == LOWEST and not np.all(np.asarray(value) < -1e30):
        raise ModelError(f"{step.title}: pads with {value}; only 0 is supported, and before MaxPool the lowest number")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ModelError(f"{step.title}: mode {mode} is not supported")
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{step.title}: pads {pads} do not fit the shape {show(flow.dims)}")
    sample, widths = flow.sample, [(0, 0)] * flow.sample.ndim
    for axis, before, after in zip(axes, pads, pads[len(axes):]):
        if (before, after) == (0, 0):
            continue
        inside = _inside(step, flow, axis, "pads")
        size = sample.shape[inside]
        sample = sample.take(range(max(0, -before), size - max(0, -after)), axis=inside)
        widths[inside] = (max(0, before), max(0, after))
    if not sample.size:
        raise ModelError(f"{step.title}: nothing is left of {show(flow.dims)}")
    limited(step, *(size + sum(width) for size, width in zip(sample.shape, widths)))
    options = {"constant_values": fill} if mode == "constant" else {}
    return flow.turned(np.pad(sample, widths, mode=mode, **options))


def concat(step, flow):
    flows = list(step.arguments)
    axis = step.attributes["axis"]
    inside = _inside(step, flow, axis, "joins")
    for position, value in enumerate(flows):
        if not isinstance(value, Flow):
            if value.any():
                raise ModelError(f"{step.title}: joins a constant that is not 0, which is not supported")
            value = np.broadcast_to(value, flow.dims[:flow.first] + value.shape[flow.first:])
            flows[position] = flow.turned(np.full(value.shape[flow.first:], -1))
    rest = {tuple(size for at, size in enumerate(one.dims) if at != axis % len(flow.dims)) for one in flows}
    if len(rest) > 1 or len({len(one.dims) for one in flows}) > 1:
        raise ModelError(f"{step.title}: shapes {', '.join(show(one.dims) for one in flows)} do not fit")
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


def _joined(step, seen, role):
    """A node that holds Views one behind the other: along the channels by adding up, along y or x by parts; None if one has to
    be copied."""
    sizes = [(len(one.rows), len(one.columns)) for one in seen]
    places = [slide(one, size, (1, 1)) for one, size in zip(seen, sizes)]
    if None in places:
        return None
    if role == 0:
        channels, taps, first = sum(len(one.channels) for one in seen), [], 0
        for one, place in zip(seen, places):
            limited(step, one.source.shape[2], channels)
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

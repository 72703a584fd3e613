"""Concatenation of tensors: as one index map, as sums and parts of one node, or as a list of nodes."""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Joint, Linear, SumRegion
from ...ir.errors import ModelError
from ..index.fine import written_out
from ..index.phases import phased_concat
from ..index.values import LIMIT, limited, show, whole
from ..index.views import arranged, channel_taps, in_place, in_roles, roles_of, select, slide, view
from .shapes import own_axis

__all__ = ["concat", "stacked", "together"]


def concat(step, tensor):
    """Returns tensors side by side along the axis of the step."""
    tensors = list(step.arguments)
    inside = own_axis(step, tensor, step.attributes["axis"], "joins")
    rest = {(one.batch, *np.delete(one.dims, inside)) for one in tensors if len(one.dims) == len(tensor.dims)}
    if len(rest) > 1 or any(len(one.dims) != len(tensor.dims) for one in tensors):
        raise ModelError(f"{step.title}: shapes {', '.join(show(one) for one in tensors)} do not fit")
    limited(step, sum(one.size for one in tensors))
    if len({one.source for one in tensors}) == 1:
        together = tensor.permuted(np.concatenate([one.sample for one in tensors], axis=inside))
        if together.sample.ndim < 3 or next(arranged(together), None):
            return together
    if any(isinstance(one.source, Joint) for one in tensors):
        return _side_by_side(step, tensors, inside)
    shape = list(tensor.sample.shape)
    shape[inside] = sum(one.sample.shape[inside] for one in tensors)
    for roles in roles_of(shape):
        seen = _views(tensors, roles, inside)
        if inside in roles and None not in seen:
            node = _joined(step, seen, roles.index(inside))
            if node is not None:
                sample = np.concatenate([one.sample for one in tensors], axis=inside)
                return tensor.of(node, in_place(whole(node), sample.shape, roles))
    found = _in_phases(step, tensors, inside)
    if found is None and (fine := _written_out(step, tensors, inside)):
        return concat(replace(step, arguments=fine), fine[0])
    return found or _side_by_side(step, tensors, inside)


def _views(tensors, roles, inside):
    """Returns the View of each tensor, None if it has none. If values have to be copied, and are no channels of an image, inputs
    without a layout are laid out with their last axis as channels: copies then read whole lines."""
    if inside != roles[0] and any(not one.source.loose and view(one, in_roles(one.sample, roles)) is None for one in tensors):
        last = max(role for role in roles if role is not None)
        for one in tensors:
            if one.source.loose:
                view(one, in_roles(one.sample, roles_of(one.sample.shape, last)[0]))  # raises Relayout
        return [None]
    return [view(one, in_roles(one.sample, roles)) for one in tensors]


def _in_phases(step, tensors, inside):
    """Concatenates tensors along channels if one tensor has more pixels than its node has positions. Returns None if no tensor
    has more pixels. `inside` is the axis of the concatenation."""
    shapes = {one.sample.ndim for one in tensors}
    if shapes != {4} or inside != 1 or tensors[0].dims[0] != 1:
        return None
    for one in tensors:
        view(one, one.sample[0])  # raises Relayout if the layout of the input is not known yet
    found = phased_concat(step, [(one.source, one.sample[0]) for one in tensors], channel_taps)
    return found and tensors[0].of(found[0], found[1][None])


def _written_out(step, tensors, inside):
    """Returns the tensors of a concatenation along channels with a position for each pixel. Returns None if all have that form,
    or if a tensor cannot be written out."""
    if inside != 1 or any(one.sample.ndim != 4 or one.dims[0] != 1 for one in tensors):
        return None
    nodes = [written_out(step, one.source, one.sample[0]) for one in tensors]
    if not any(nodes) or any(node is None and view(one, one.sample[0]) is None for one, node in zip(tensors, nodes)):
        return None
    return [one if node is None else one.of(node, whole(node)[None]) for one, node in zip(tensors, nodes)]


def _joined(step, seen, role):
    """Returns a node that concatenates Views. Channels are concatenated by a sum of taps, rows (y) or columns (x) by several
    parts. `role` is 0 for channels, 1 for y, 2 for x. Returns None if a View has to be copied first, or if too many weights are
    needed."""
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
            chosen[first : first + len(one.channels)] = one.channels
            first += len(one.channels)
            taps.append(select(one.source, chosen, **place))
        return Linear(**step.titles, shape=(*sizes[0], channels), parts=(SumRegion(tuple(taps), sizes[0]),))
    parts, origin = [], [0, 0]
    for one, size, place in zip(seen, sizes, places):
        parts.append(SumRegion((select(one.source, one.channels, **place),), size, tuple(origin)))
        origin[role - 1] += size[role - 1]
    size = [sizes[0][0], sizes[0][1]]
    size[role - 1] = origin[role - 1]
    return Linear(**step.titles, shape=(*size, len(seen[0].channels)), parts=tuple(parts))


def _sources(tensor):
    return tensor.source.sources if isinstance(tensor.source, Joint) else (tensor.source,)


def _side_by_side(step, tensors, inside):
    """Concatenates tensors whose values are in several nodes without a common arrangement. Returns a tensor of a :class:`.Joint`,
    a node that only lists these nodes."""
    sources = list(dict.fromkeys(source for one in tensors for source in _sources(one)))
    first = dict(zip(sources, np.cumsum([0, *(prod(source.shape) for source in sources)]).tolist()))
    samples = []
    for one in tensors:
        index, at = np.full(one.size, -1), 0
        for source in _sources(one):
            size = prod(source.shape)
            there = (one.index >= at) & (one.index < at + size)
            index[there] = one.index[there] - at + first[source]
            at += size
        samples.append(index.reshape(one.sample.shape))
    node = Joint(**step.titles, shape=(1, 1, sum(prod(source.shape) for source in sources)), sources=tuple(sources))
    return tensors[0].of(node, np.concatenate(samples, axis=inside))


def together(step, tensors):
    """Concatenates tensors to one vector per sample, of one node or of a :class:`.Joint`. The reader uses it for the results of a
    model with several outputs."""
    flat = [replace(one, dims=(1, one.size), batch=None if one.batch is None else 0, label="") for one in tensors]
    if len({one.source for one in flat}) == 1:
        return flat[0].permuted(np.concatenate([one.sample for one in flat], axis=1))
    return _side_by_side(step, flat, 1)


def stacked(step, tensor):
    """Returns a tensor of a :class:`.Joint` as a tensor of one node with all values of the joined nodes, if the Joint is too
    large to be copied into a vector. Returns any other tensor itself."""
    source = tensor.source
    if not isinstance(source, Joint) or source.shape[2] * tensor.size <= LIMIT:
        return tensor
    node, firsts = _stacked(step, list(source.sources))
    index, first = tensor.index.copy(), 0
    for one in source.sources:
        there = (tensor.index >= first) & (tensor.index < first + prod(one.shape))
        index[there] = _place_in(node, firsts, one, tensor.index[there] - first)
        first += prod(one.shape)
    return replace(tensor, source=node, index=index)


def _place_in(node, firsts, source, index):
    """Returns an index map into a node from :func:`_stacked`, for an index map into one of its sources. `firsts` are the places
    of the sources."""
    y, x, channel = np.unravel_index(index, source.shape)
    top, first = firsts[source]
    return np.ravel_multi_index((top + y, x, first + channel), node.shape)


def _stacked(step, sources):
    """Returns a new node with all values of several nodes, and {old node: (first row, first channel) in the new node}. If all
    nodes have the same height and width, they are concatenated along the channels. Otherwise they are stacked along y, padded to
    the largest width and number of channels."""
    tops, width = np.cumsum([0, *(source.shape[0] for source in sources)]).tolist(), max(one.shape[1] for one in sources)
    if len({source.shape[:2] for source in sources}) == 1:
        firsts = np.cumsum([0, *(source.shape[2] for source in sources)]).tolist()
        size, depth, taps = sources[0].shape[:2], firsts[-1], []
        for source, first in zip(sources, firsts):
            chosen = np.full(depth, -1)
            chosen[first : first + source.shape[2]] = np.arange(source.shape[2])
            taps.append(select(source, chosen))
        parts, places = (SumRegion(tuple(taps), size),), [(0, first) for first in firsts]
    else:
        size, depth = (tops[-1], width), max(source.shape[2] for source in sources)
        chosen = [np.where(np.arange(depth) < source.shape[2], np.arange(depth), -1) for source in sources]
        parts = tuple(
            SumRegion((select(source, one),), source.shape[:2], (top, 0)) for source, one, top in zip(sources, chosen, tops)
        )
        places = [(top, 0) for top in tops]
    limited(step, *size, depth)
    return Linear(**step.titles, shape=(*size, depth), parts=parts), dict(zip(sources, places))

"""Views: index maps that split into rows, columns and channels of the node that holds the values.

Transpose, Reshape, Slice, Pad and similar operators only change the index map of a
:class:`sim.frontend.index.values.SymbolicTensor`. When a convolution or a pooling reads the tensor, the index map is split into a
map for each of the three axes. If the stride and the padding of a tap cannot express these maps, the values are first copied into
a new node.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...fusion.nodes import Joint, Linear, Node, SumRegion, Tap
from ...ir.errors import ModelError
from ...ir.stage import Pool
from .blocks import block_cost, block_product
from .fine import written_out
from .relayout import Relayout
from .runs import in_runs, select
from .strided import choosing_cost, copying_cost, strided
from .values import LIMIT, has_all, limited, show, whole

__all__ = [
    "View",
    "view",
    "arranged",
    "copied",
    "product_in_blocks",
    "arrangement",
    "select",
    "channel_taps",
    "tap",
    "everything",
    "seen_through",
    "slide",
    "roles_of",
    "in_roles",
    "in_place",
    "positions_in_order",
]

_MOST_GATHERS = 64
_MOST_CHOICES = 1 << 12  # weights that copy several nodes into a vector, if no later node takes them

# Candidates for the axes (channel, y, x) of a sample, by its number of axes: the given order first, then channels last.
_ROLES = (
    ((None, None, None),),
    ((0, None, None), (None, None, 0), (None, 0, None)),
    ((0, None, 1), (1, None, 0), (0, 1, None), (1, 0, None), (None, 0, 1), (None, 1, 0)),
    ((0, 1, 2), (2, 0, 1), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 1, 0)),
)


@dataclass(frozen=True, eq=False)
class View:
    """A tensor (channel, y, x) whose index map splits by axes. The value at (c, y, x) is the value of the node in channel
    `channels[c]` at (`rows[y]`, `columns[x]`). It is 0 if one of these three indices is -1."""

    source: Node
    channels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    @property
    def complete(self):
        """Returns True if the view covers the whole node: all rows and columns in order, and all channels in any order."""
        height, width, channels = self.source.shape
        return (
            has_all(self.channels, channels)
            and np.array_equal(self.rows, np.arange(height))
            and np.array_equal(self.columns, np.arange(width))
        )

    @property
    def has_every_position(self):
        """Returns True if the view has each position of the node exactly once, with rows and columns in any order."""
        return all(has_all(places, have) for places, have in zip((self.rows, self.columns), self.source.shape[:2]))


def _apart(source, index):
    """Returns the View of an index map (channel, y, x) into the node `source`. Returns None if the map does not split by axes."""
    _, width, channels = source.shape
    facts = {"where": index >= 0, "initial": -1}
    c = (index % channels).max(axis=(1, 2), **facts)
    rows = (index // (width * channels)).max(axis=(0, 2), **facts)
    columns = (index // channels % width).max(axis=(0, 1), **facts)
    again = (rows[:, None] * width + columns) * channels + c[:, None, None]
    again[(c < 0)[:, None, None] | (rows < 0)[:, None] | (columns < 0)] = -1
    return View(source, c, rows, columns) if np.array_equal(again, index) else None


def view(tensor, index):
    """Returns the View of an index map (channel, y, x) into the node of a tensor. Returns None if there is no View. Raises
    :class:`Relayout` if the node is the input, and a different layout of the input permits a View."""
    result = None if isinstance(tensor.source, Joint) else _apart(tensor.source, index)
    if result is None and tensor.source.loose:
        _relayout(tensor, index)
    return result


def _relayout(tensor, index):
    """Raises :class:`Relayout` if the index map would be a View in a different layout of the input."""
    there = index >= 0
    inner = index[np.ix_(there.any((1, 2)), there.any((0, 2)), there.any((0, 1)))]
    size = tensor.source.shape[2]
    root = tensor.source
    while root.sources:
        root = root.sources[0]
    if has_all(inner, size):
        raise Relayout(root.name, (*inner.shape[1:], inner.shape[0]), inner.transpose(1, 2, 0).reshape(-1))
    axes = [length for length in root.sample if length != 1]
    if len(axes) == 1 and index.shape[0] == 1 and index.size > _MOST_GATHERS:  # a padded signal: a position for each value
        raise Relayout(root.name, (1, size, 1), np.arange(size))
    if len(axes) in (2, 3):  # sliced or mirrored: the model's own layout, with the channels first or last
        places = np.arange(size).reshape(axes if len(axes) == 3 else [1, *axes])
        for pixels in (places.transpose(1, 2, 0), places):
            shape, order = pixels.shape, pixels.reshape(-1)
            moved = np.where(there, np.argsort(order)[index], -1)
            if _apart(replace(root, shape=shape), moved) is not None:
                raise Relayout(root.name, shape, order)


def roles_of(shape, last=None):
    """Returns the possible assignments of a sample's axes to (channel, y, x), the likeliest first. None marks a role without an
    axis. If `last` is given, this axis must be the channel."""
    axes = [axis for axis, size in enumerate(shape) if size != 1 or axis == last]
    if len(axes) > 3:
        return []
    ways = [tuple(None if role is None else axes[role] for role in roles) for roles in _ROLES[len(axes)]]
    return [roles for roles in ways if last is None or roles[0] == last]


def arranged(tensor, last=None):
    """Yields the ways to view a sample as (channel, y, x). Each is a View, and the axes of the sample in these three roles, as
    :func:`roles_of` returns them."""
    ways = [] if isinstance(tensor.source, Joint) else roles_of(tensor.sample.shape, last)
    found = False
    for roles in ways:
        seen = _apart(tensor.source, in_roles(tensor.sample, roles))
        if seen is not None:
            found = True
            yield seen, roles
    if ways and not found and tensor.source.loose:
        _relayout(tensor, in_roles(tensor.sample, ways[0]))


def arrangement(step, tensor, last=None):
    """Returns `(tensor, View, roles)` for a tensor that has all values of its node. If the index map of the tensor is not a
    View, the values are first copied into a new node."""
    tensor = everything(step, tensor)
    for seen, roles in arranged(tensor, last):
        return tensor, seen, roles
    for roles in roles_of(tensor.sample.shape, last):
        node = copied(step, tensor, in_roles(tensor.sample, roles))
        tensor = tensor.of(node, in_place(whole(node), tensor.sample.shape, roles))
        return tensor, _apart(node, whole(node)), roles
    raise _too_many_axes(step, tensor)


def _too_many_axes(step, tensor):
    return ModelError(
        f"{step.title}: works on {show(tensor)}; up to three axes of a sample are supported; join axes by a Reshape before it"
    )


def positions_in_order(tensor):
    """Returns the node of a tensor whose last axis is the channels, and whose other axes are all positions of the node, line
    after line. Returns None if the tensor has other values, or in another order."""
    source = tensor.source
    if isinstance(source, Joint) or source.loose or source.shape[0] == 1 or tensor.sample.shape[-1] != source.shape[2]:
        return None
    return source if np.array_equal(tensor.sample.reshape(-1), np.arange(prod(source.shape))) else None


def in_roles(sample, roles):
    """Returns a sample's index map in the shape (channel, y, x). `roles` has the axes of the sample for channel, y and x."""
    kept = [axis for axis in roles if axis is not None]
    rest = [axis for axis in range(sample.ndim) if axis not in kept]
    return sample.transpose(*kept, *rest).reshape([1 if axis is None else sample.shape[axis] for axis in roles])


def in_place(index, sample_shape, roles):
    """Returns an index map (channel, y, x) in the shape of a sample: the inverse of :func:`in_roles`. Axes without a role have
    the size 1."""
    kept = [axis for axis in roles if axis is not None]
    rest = [axis for axis in range(len(sample_shape)) if axis not in kept]
    sizes = [size for size, axis in zip(index.shape, roles) if axis is not None]
    return index.reshape(*sizes, *[1] * len(rest)).transpose(np.argsort([*kept, *rest]))


def _fit(have, places, count, stride, kernel, dilation, before):
    """Converts windows over a view of one axis to windows along the axis of the node that read the same values. Returns
    `(stride, dilation, padding)`. Returns None if there are no such windows. The view has the positions `places` of the `have`
    positions of the node. The other arguments are the windows over the view."""
    reads = _reads(count, stride, kernel, dilation) - before
    wanted = np.where((reads >= 0) & (reads < len(places)), places[np.clip(reads, 0, len(places) - 1)], -1)
    there = np.flatnonzero(places >= 0)
    if not there.size:
        return 1, 1, -have
    step = 1 if there.size == 1 else (places[there[1]] - places[there[0]]) // (there[1] - there[0])
    start = places[there[0]] - step * there[0]
    if step < 1:
        return None
    got = step * reads + start
    if not np.array_equal(np.where((got >= 0) & (got < have), got, -1), wanted):
        return None
    return int(step * stride if count > 1 else 1), int(step * dilation if kernel > 1 else 1), int(step * before - start)


def _reads(count, stride, kernel, dilation):
    if count < kernel:
        count, stride, kernel, dilation = kernel, dilation, count, stride
    read = np.zeros((count - 1) * stride + (kernel - 1) * dilation + 1, bool)
    for first in range(0, kernel * dilation, dilation):
        read[first : first + (count - 1) * stride + 1 : stride] = True
    return np.flatnonzero(read)


def slide(seen, size, kernel, stride=(1, 1), dilation=(1, 1), padding=(0, 0)):
    """Converts windows over a View to windows over its node. Returns the arguments `stride`, `dilation` and `padding` of a tap.
    Returns None if no tap reads the same values."""
    places = (seen.rows, seen.columns)
    fits = [_fit(*axis) for axis in zip(seen.source.shape, places, size, stride, kernel, dilation, padding)]
    return None if None in fits else dict(zip(("stride", "dilation", "padding"), zip(*fits)))


def tap(step, seen, weights, size, groups=1, **geometry):
    """Returns the tap of a convolution over a View. Returns None if the View must be copied first. The weights are (kernel
    height, kernel width, channels / groups, outputs)."""
    place = slide(seen, size, weights.shape[:2], **geometry)
    if place is None:
        return None
    have, outputs = seen.source.shape[2], weights.shape[3]
    inner = np.arange(have).reshape(groups, -1) if have == len(seen.channels) else None
    if inner is None or (np.sort(seen.channels.reshape(groups, -1), axis=1) != inner).any():
        limited(step, *weights.shape[:2], have, outputs)
        spread = np.zeros((*weights.shape[:2], have, outputs))
        for column in range(outputs):
            sources = seen.channels.reshape(groups, -1)[column * groups // outputs]
            there = np.flatnonzero(sources >= 0)
            np.add.at(spread[..., column], (slice(None), slice(None), sources[there]), weights[:, :, there, column])
        return Tap(seen.source, spread, **place)
    if not np.array_equal(seen.channels, np.arange(have)):
        order = np.argsort(seen.channels.reshape(groups, -1), axis=1).repeat(outputs // groups, axis=0)  # (outputs, channels)
        weights = np.take_along_axis(weights, order.T[None, None], axis=2)
    return Tap(seen.source, weights, groups=groups, **place)


def _runs(have, places):
    """Divides the positions `places` of an axis into ranges, so that one tap can read each range. Yields the `(first, end)` of
    each range."""
    first = 0
    while first < len(places):
        end, step = first + 1, 1 << len(places).bit_length()
        while step:  # every prefix of a run is a run, so its length is found by binary search
            if end + step <= len(places) and _fit(have, places[first : end + step], end + step - first, 1, 1, 1, 0):
                end += step
            step //= 2
        yield first, end
        first = end


def copied(step, tensor, index):
    """Returns a new node with a copy of the values that an index map (channel, y, x) selects from the node of a tensor. The
    values are in the order of the index map. Weights of zeros and ones copy them, unless a copy by strides takes less time."""
    if isinstance(tensor.source, Joint):
        return strided(step, tensor.source, index)
    try:
        node = _chosen(step, tensor, index)
    except ModelError:  # too many weights
        node = None
    if isinstance(node, Linear) and all(tap.select is not None for part in node.parts for tap in part.taps):
        order, source = index.transpose(1, 2, 0).reshape(-1), tensor.source
        is_reshape = len(index) == source.shape[2] and np.array_equal(order, np.arange(prod(source.shape)))  # needs no copy
        node = node if is_reshape or choosing_cost(node) <= 2 * _cost_of(source, index) else None
    return node or strided(step, tensor.source, index)


def _cost_of(source, index):
    """Returns the estimate of :func:`copying_cost` for an index map (channel, y, x)."""
    return copying_cost(source, index.transpose(1, 2, 0).reshape(-1, len(index)))


def _chosen(step, tensor, index):
    """Returns a node that copies values by weights of zeros and ones. Returns None if there is none."""
    seen = view(tensor, index)
    channels, height, width = index.shape
    if seen is None:
        taps = channel_taps(tensor.source, index, channels)
        if taps is None or len(taps) > height * width:
            return written_out(step, tensor.source, index) or in_runs(step, tensor.source, index)
        limited(step, tensor.source.shape[2], channels)
        return Linear(**step.titles, shape=(height, width, channels), parts=(SumRegion(tuple(taps), (height, width)),))
    limited(step, tensor.source.shape[2], channels)
    repeated = [len(places) > 1 and places[0] >= 0 and np.unique(places).size == 1 for places in (seen.rows, seen.columns)]
    if any(repeated):
        return _repeated(step, seen, repeated)
    if (fine := written_out(step, seen.source, index)) is not None:
        return fine
    parts = []
    for top, bottom in _runs(seen.source.shape[0], seen.rows):
        for left, right in _runs(seen.source.shape[1], seen.columns):
            size = (bottom - top, right - left)
            piece = View(seen.source, seen.channels, seen.rows[top:bottom], seen.columns[left:right])
            parts.append(SumRegion((select(seen.source, seen.channels, **slide(piece, size, (1, 1))),), size, (top, left)))
    return Linear(**step.titles, shape=(height, width, channels), parts=tuple(parts))


def channel_taps(source, index, total, first=0):
    """Returns taps that copy the values of an index map (channel, y, x) to consecutive channels, starting at `first`, of a
    result with `total` channels. Channels with the same positions share a tap, for example the channels of a block of a
    SpaceToDepth. Returns None if a channel's positions do not form a View, or if there would be too many taps."""
    groups = {}
    for channel, one in enumerate(index):
        seen = _apart(source, one[None])
        if seen is None:
            return None
        if seen.channels[0] >= 0:
            _, chosen = groups.setdefault((seen.rows.tobytes(), seen.columns.tobytes()), (seen, np.full(total, -1)))
            chosen[first + channel] = seen.channels[0]
    places = [slide(seen, index.shape[1:], (1, 1)) for seen, _ in groups.values()]
    if None in places or not 1 <= len(places) <= _MOST_GATHERS:
        return None
    return [select(source, chosen, **place) for (_, chosen), place in zip(groups.values(), places)]


def _repeated(step, seen, repeated):
    """Returns a node that repeats a row, a column or a position of a View. It uses max pooling over windows that contain only
    that row, column or position."""
    size = tuple(1 if there else len(places) for there, places in zip(repeated, (seen.rows, seen.columns)))
    narrow = View(seen.source, seen.channels, seen.rows[: size[0]], seen.columns[: size[1]])
    window = tuple(len(places) if there else 1 for there, places in zip(repeated, (seen.rows, seen.columns)))
    result = (len(seen.rows), len(seen.columns))
    place = slide(narrow, size, (1, 1))
    if place is None:
        raise ModelError(f"{step.title}: this repetition of its input is not supported")
    part = SumRegion((select(seen.source, seen.channels, **place),), size)
    return Linear(
        **step.titles,
        shape=(*result, len(seen.channels)),
        parts=(part,),
        pool=Pool(window, result, padding=(window[0] - 1, window[1] - 1)),
    )


def product_in_blocks(step, tensor, weights, exact=False):
    """Returns the result of :func:`sim.frontend.index.blocks.block_product` for a tensor. If the result is None, the tensor is
    copied so that each value of a row has its own position, and the function is called again for the copy. The tensor is copied
    only if a row has fewer values than there are rows. Returns None, too, if a copy of the rows takes less time."""
    rows = tensor.index.reshape(-1, len(weights))
    if isinstance(tensor.source, Joint) or not len(weights) or block_cost(rows, weights) > 2 * copying_cost(tensor.source, rows):
        return None
    found = block_product(step, tensor, weights, exact)
    if found or not len(weights) < len(rows) or len(weights) > _MOST_GATHERS:
        return found
    node = copied(step, tensor, rows[:, None])
    return block_product(step, tensor.of(node, whole(node)), weights, exact)


def _as_vector(step, tensor):
    """Copies a tensor whose values are in several nodes (:class:`.Joint`) into a vector. Returns the tensor of the new node.
    Weights select the values if a later node can take these weights, or if they are few."""
    taps, first, sources = [], 0, tensor.source.sources
    order = np.arange(tensor.size).reshape(tensor.sample.shape)
    weights = sum(prod(source.shape) for source in sources) * tensor.size
    if weights > (LIMIT if all(source.shape[:2] == (1, 1) for source in sources) else _MOST_CHOICES):
        return tensor.of(strided(step, tensor.source, tensor.index.reshape(-1, 1, 1)), order)
    for source in sources:
        size = prod(source.shape)
        there = np.flatnonzero((tensor.index >= first) & (tensor.index < first + size))
        weights = np.zeros((size, tensor.size))
        weights[tensor.index[there] - first, there] = 1
        taps.append(Tap(source, weights.reshape(*source.shape, -1), exact=True))
        first += size
    node = Linear(**step.titles, shape=(1, 1, tensor.size), parts=(SumRegion(tuple(taps), (1, 1)),))
    return tensor.of(node, order)


def seen_through(tensor):
    """If the node of a tensor is a concatenation and all values come from one of the concatenated nodes, returns the tensor as
    values of that node. Otherwise returns the tensor itself."""
    node = tensor.source
    if (
        not isinstance(node, Linear)
        or not node.plain
        and len(node.parts) < 2
        or not node.open
        or node.pool
        or tensor.index.min() < 0
    ):
        return tensor
    (_, width, depth), channels = node.shape, tensor.index % node.shape[2]
    rows, columns = tensor.index // (width * depth), tensor.index // depth % width
    for part in node.parts:
        (top, left), (height, wide) = part.origin, part.size
        inside = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + wide)
        if inside.all():
            return _seen_in(tensor, node, part, (rows - top, columns - left, channels))
    return tensor


def _seen_in(tensor, node, part, places):
    """Returns the tensor as values of the node that one tap of a part copies. Returns the tensor itself if no tap copies all of
    its values. `places` are the positions of the values in the part, as arrays (y, x, channel)."""
    if node.bias is not None:
        return tensor
    rows, columns, channels = places
    for tap in part.taps:
        if tap.select is None or tap.kernel != (1, 1) or (tap.select[channels] < 0).any():
            continue
        if any(other is not tap and (other.select is None or (other.select[channels] >= 0).any()) for other in part.taps):
            return tensor
        height, width, depth = tap.source.shape
        y, x = (place * stride - before for place, stride, before in zip((rows, columns), tap.stride, tap.padding))
        if min(y.min(), x.min()) < 0 or y.max() >= height or x.max() >= width:
            return tensor
        return replace(tensor, source=tap.source, index=(y * width + x) * depth + tap.select[channels])
    return tensor


def everything(step, tensor):
    """Returns a tensor that has all values of its node exactly once, in any order. If `tensor` has this property, it is
    returned. Otherwise a copy is returned."""
    if isinstance(tensor.source, Joint):
        return _as_vector(step, tensor)
    if has_all(tensor.index, prod(tensor.source.shape)):
        return tensor
    ways = [roles for _, roles in arranged(tensor)] or roles_of(tensor.sample.shape)
    if not ways:
        sizes = [size for size in tensor.dims if size != 1]
        few = everything(step, tensor.permuted(tensor.index.reshape(-1, *sizes[-2:]), None))
        return replace(tensor, source=few.source, index=few.index)
    roles = ways[0]
    if next(arranged(tensor), None) is None:  # if a whole position can be copied at a time, its channels must be an axis
        roles = min(ways, key=lambda one: _cost_of(tensor.source, in_roles(tensor.sample, one)))
    node = copied(step, tensor, in_roles(tensor.sample, roles))
    return tensor.of(node, in_place(whole(node), tensor.sample.shape, roles))

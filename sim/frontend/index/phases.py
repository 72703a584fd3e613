"""Phases: tensors with more pixels than their node has positions. With a factor f, pixel (f * y + a, f * x + b) is stored at
position (y, x), in the channels of its phase (a, b).

No stage can write every second pixel. Results of DepthToSpace, Resize and ConvTranspose are therefore not moved: they remain
channels of coarse positions. There is one block of channels for each phase (a, b). A Resize has one block for all phases. A
convolution that reads such a tensor becomes a convolution over the coarse positions. The weights define the input phases that
are summed for each output phase. If phases are separate blocks, most weights are 0, so the core multiplies several times as many
numbers. For many channels, :mod:`sim.frontend.index.fine` writes the pixels out instead.
"""

from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from ...fusion.nodes import Joint, Linear, SumRegion, Tap
from ...ir.tiles import dense
from .values import limited, whole

__all__ = ["Phases", "phases_of", "phased_convolution", "phased_concat", "in_phases"]

#: Limits on the weights of a convolution and on the channels of a concatenation with phases. Larger fine tensors are written out.
_MOST_WEIGHTS, _MOST_CHANNELS = 1 << 19, 512


@dataclass(frozen=True, eq=False)
class Phases:
    """The phases of a tensor in the channels of its node."""

    factor: tuple[int, int]  # rows and columns of pixels per position of the node
    #: Int array (rows, columns, channels). The node's channel for each phase and channel of the tensor; -1 means the constant 0.
    channels: np.ndarray


def phases_of(source, index):
    """Returns the :class:`Phases` of an index map (channel, y, x) into the node `source`. Returns None if the map has no
    phases."""
    height, width, depth = source.shape
    if isinstance(source, Joint) or index.shape[1] % height or index.shape[2] % width:
        return None
    factor = index.shape[1] // height, index.shape[2] // width
    split = index.reshape(-1, height, factor[0], width, factor[1])
    first, places = split[:, :1, :, :1], np.arange(0, height * width * depth, depth).reshape(height, 1, width, 1)
    if first.max() >= depth or not (split - first == np.where(first < 0, 0, 1) * places).all():
        return None
    channels = first[:, 0, :, 0].transpose(1, 2, 0)
    return None if (index < -1).any() else Phases(factor, channels)


def in_phases(index, factor):
    """Returns an index map (channel, y, x) in the form (phase and channel, coarse y, coarse x). The numbers of rows and columns
    must be multiples of the factor."""
    channels, height, width = index.shape
    split = index.reshape(channels, height // factor[0], factor[0], width // factor[1], factor[1])
    return split.transpose(2, 4, 0, 1, 3).reshape(-1, height // factor[0], width // factor[1])


def _in_pixels(index, factor, size):
    """Returns an index map (phase and channel, coarse y, coarse x) in the form (channel, y, x): the inverse of :func:`in_phases`.
    The result is cropped to `size` (height, width)."""
    split = index.reshape(*factor, -1, *index.shape[1:])
    pixels = split.transpose(2, 3, 0, 4, 1).reshape(split.shape[2], index.shape[1] * factor[0], -1)
    return pixels[:, : size[0], : size[1]]


# Convolutions


def _links(factor, kernel, stride, dilation, before, transposed):
    """Describes, along one axis, a convolution of a tensor with phases. Returns `(phases of the result, stride over the node,
    links)`. A link (p, k, a, offset) is one product: phase p of the result adds kernel element k times phase a of the node. The
    operand is `offset` positions after the start of the window. `before` is the padding; `transposed` is True for a transposed
    convolution."""
    if transposed:
        phases, step = stride * factor, 1
        aims = ((p, k, a, p + before - k * dilation - stride * a) for p, k, a in np.ndindex(phases, kernel, factor))
        return phases, step, [(p, k, a, aim // phases) for p, k, a, aim in aims if aim % phases == 0]
    phases, step = factor // gcd(factor, stride), stride // gcd(factor, stride)
    reads = ((p, k, p * stride + k * dilation - before) for p, k in np.ndindex(phases, kernel))
    return phases, step, [(p, k, read % factor, read // factor) for p, k, read in reads]


def phased_convolution(step, tensor, index, weights, at, groups, *, transposed=False):
    """Returns the node of a convolution over a tensor that has :class:`Phases`. The result may have phases too. If `transposed`
    is True, the convolution is transposed.

    Parameters
    ----------
    weights : binary64 (kernel height, kernel width, channels / groups, outputs)
    at : object
        Geometry of the convolution in pixels: `kernel`, `stride`, `dilation`, `begin` and `size`, (int, int) each.

    Returns
    -------
    Linear, index (output, y, x), or None
        The node, without a bias; None if the index has no phases, or if they would multiply many weights.
    """
    seen = None if isinstance(tensor.source, Joint) else phases_of(tensor.source, index)
    if seen is None:
        return None
    geometry = zip(seen.factor, at.kernel, at.stride, at.dilation, at.begin)
    axes = [_links(*one, transposed) for one in geometry]
    phases, steps = tuple(one[0] for one in axes), tuple(one[1] for one in axes)
    links = [one[2] or [(0, 0, 0, 0)] for one in axes]
    first = [min(offset for *_, offset in one) for one in links]
    kernel = [max(offset for *_, offset in one) - low + 1 for one, low in zip(links, first)]
    inputs, outputs = tensor.source.shape[2], weights.shape[3]
    if seen.factor != (1, 1) and prod((*kernel, inputs, *phases, outputs)) > _MOST_WEIGHTS:
        return None
    limited(step, *kernel, inputs, *phases, outputs)
    spread = np.zeros((*kernel, inputs, *phases, outputs))
    full = dense(weights, groups)
    for py, ky, ay, dy in axes[0][2]:
        for px, kx, ax, dx in axes[1][2]:
            channels = seen.channels[ay, ax]
            there = np.flatnonzero(channels >= 0)
            np.add.at(spread[dy - first[0], dx - first[1], :, py, px], channels[there], full[ky, kx, there])
    size = tuple(-(-have // count) for have, count in zip(at.size, phases))
    one = Tap(
        tensor.source, spread.reshape(*kernel, inputs, -1), stride=steps, padding=tuple(-low for low in first), dilation=(1, 1)
    )
    node = Linear(**step.titles, shape=(*size, one.weights.shape[3]), parts=(SumRegion((one,), size),))
    return node, _in_pixels(whole(node), phases, at.size)


# Concatenation


def phased_concat(step, indices, taps_of):
    """Concatenates tensors along channels if at least one tensor has more pixels than its node has positions. Returns `(node,
    index)`, or None if the tensors cannot be concatenated in this way.

    Parameters
    ----------
    indices : list of (source, index (channel, y, x))
    taps_of : function
        :func:`sim.frontend.index.views.channel_taps`.
    """
    if any(isinstance(source, Joint) for source, _ in indices):
        return None
    found = [phases_of(source, index) for source, index in indices]
    factor = tuple(np.max([one.factor for one in found if one] or [(1, 1)], axis=0).tolist())
    size = indices[0][1].shape[1:]
    if factor == (1, 1) or any(have % count for have, count in zip(size, factor)):
        return None
    blocks = [in_phases(index, factor) for _, index in indices]
    total, first, taps, order = sum(map(len, blocks)), 0, [], []
    if total > _MOST_CHANNELS:
        return None
    for (source, _), block in zip(indices, blocks):
        limited(step, source.shape[2], total)
        one = taps_of(source, block, total, first)
        if one is None:
            return None
        taps += one
        order.append(np.arange(first, first + len(block)).reshape(*factor, -1))
        first += len(block)
    coarse = tuple(have // count for have, count in zip(size, factor))
    node = Linear(**step.titles, shape=(*coarse, total), parts=(SumRegion(tuple(taps), coarse),))
    places = whole(node)[np.concatenate(order, axis=2).reshape(-1)]
    return node, _in_pixels(places, factor, size)

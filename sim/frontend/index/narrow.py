"""Narrowing of nodes. A narrowed node computes only some channels of another node. For example, models often compute the heads of
attention in one dense layer; each head can be a narrowed node."""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Affine, Joint, Linear, per_channel
from .values import has_all
from .views import seen_through

__all__ = ["in_narrower", "narrowed"]


def narrowed(tensor):
    """Returns the same values as a tensor of a smaller node that computes only these values. If there is no such node, returns
    the tensor itself."""
    tensor = _member(tensor)
    while True:
        node = tensor.source
        if isinstance(node, Joint) or tensor.index.min() < 0 or tensor.size == prod(node.shape):
            return tensor
        through = seen_through(tensor)
        if through.source is node:
            break
        tensor = through
    if isinstance(node, Affine):
        return _of_affine(tensor, node)
    if isinstance(node, Linear) and node.plain and not node.multiplies:
        return _of_sums(tensor, node)
    return tensor


def _member(tensor):
    """Returns a tensor of one of the nodes that are joined, if it has all values. Else returns the tensor itself."""
    if not isinstance(tensor.source, Joint) or tensor.index.min() < 0:
        return tensor
    first = 0
    for source in tensor.source.sources:
        size = prod(source.shape)
        if first <= tensor.index.min() and tensor.index.max() < first + size:
            return replace(tensor, source=source, index=tensor.index - first)
        first += size
    return tensor


def _of_affine(tensor, node):
    inner = narrowed(replace(tensor, source=node.source))
    source = inner.source
    if not has_all(inner.index, prod(source.shape)):
        return tensor

    def placed(values):
        if values is None:
            return None
        array = np.empty(inner.size)
        array[inner.index] = np.broadcast_to(values, node.shape).reshape(-1)[tensor.index]
        return per_channel(array.reshape(source.shape), source.shape)

    facts = {"name": node.name, "title": node.title, "shape": source.shape, "loose": source.loose}
    made = Affine(**facts, source=source, scale=placed(node.scale), shift=placed(node.shift))
    node.narrower.extend((channels, made) for channels, one in node.source.narrower if one is source)
    return replace(inner, source=made)


def _of_sums(tensor, node):
    """Returns the tensor as the result of a dense layer with only the weight columns of its channels. If the tensor does not
    cover all positions, it is returned unchanged."""
    height, width, depth = node.shape
    channels, positions = np.unique(tensor.index % depth), tensor.index // depth
    (part,) = node.parts
    whole = len(np.unique(positions)) == height * width and tensor.size == height * width * len(channels)
    if not whole or any(tap.groups > 1 for tap in part.taps) or len(np.unique(tensor.index)) < tensor.size:
        return tensor
    taps = tuple(
        replace(tap, weights=tap.weights[..., channels], select=None if tap.select is None else tap.select[channels])
        for tap in part.taps
    )
    bias = None if node.bias is None else node.bias[..., channels]
    facts = {"name": node.name, "title": node.title, "shape": (height, width, len(channels))}
    index = positions * len(channels) + np.searchsorted(channels, tensor.index % depth)
    made = Linear(**facts, parts=(replace(part, taps=taps),), bias=bias)
    node.narrower.append((tuple(channels.tolist()), made))
    return replace(tensor, source=made, index=index)


def in_narrower(tensor):
    """Returns the same values as a tensor of the narrowed nodes that were made of its node, if they have each channel once. Else
    returns the tensor itself."""
    node = tensor.source
    parts = dict(node.narrower)
    if sorted(channel for part in parts for channel in part) != [*range(node.shape[2])]:
        return tensor
    position, channel = np.divmod(tensor.index, node.shape[2])
    index, first = np.empty_like(tensor.index), 0
    for part, made in parts.items():
        there = np.isin(channel, part)
        index[there] = first + position[there] * len(part) + np.searchsorted(part, channel[there])
        first += prod(made.shape)
    facts = {"name": node.name, "title": node.title, "shape": (1, 1, first)}
    return replace(tensor, source=Joint(**facts, sources=tuple(parts.values())), index=index)

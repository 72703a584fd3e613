"""Pixels as positions of a node, for training: convolutions of phases have their weights several times, or zeros among them."""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Copy
from .phases import phases_of
from .strided import strided
from .values import SymbolicTensor, limited, whole

__all__ = ["PHASED", "spread", "with_pixels"]

#: Operators whose results may have phases.
PHASED = ("ConvTranspose", "DepthToSpace", "Resize", "Upsample")


def spread(step, tensor, index, stride):
    """Returns a node with the pixels of an index map (channel, y, x) at distances of `stride`, and zeros between them."""
    channels, *size = index.shape
    height, width = ((count - 1) * apart + 1 for count, apart in zip(size, stride))
    limited(step, channels, height, width)
    spaced = np.full((channels, height, width), -1)
    spaced[:, :: stride[0], :: stride[1]] = index
    return strided(step, tensor.source, spaced)


def with_pixels(step, tensor):
    """Returns a tensor with a position of its node for each pixel, if it has phases. The node copies by strides; a value that it
    needs several times, as in a Resize, is copied by as many terms."""
    if not isinstance(tensor, SymbolicTensor) or tensor.sample.ndim not in (3, 4) or tensor.dims[0] != 1:
        return tensor
    index = tensor.sample[0] if tensor.sample.ndim == 4 else tensor.sample[0][:, None]
    seen = phases_of(tensor.source, index)
    if seen is None or seen.factor == (1, 1):
        return tensor
    limited(step, *index.shape)
    order = index.transpose(1, 2, 0).reshape(-1)
    number = _occurrences(order)
    size, count = prod(tensor.source.shape), int(number.max()) + 1
    places = np.where(order < 0, -1, order + number * size)
    shape = (*index.shape[1:], index.shape[0])
    node = Copy(**step.titles, shape=shape, sources=(tensor.source,) * count, index=places)
    made = whole(node) if tensor.sample.ndim == 4 else whole(node)[:, 0]
    return replace(tensor, source=node, index=made.reshape(-1))


def _occurrences(values):
    """Returns the number of equal values before each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    number = np.empty(len(values), np.int64)
    number[order] = np.arange(len(values)) - np.repeat(firsts, np.diff(firsts, append=len(values)))
    return np.where(values < 0, 0, number)

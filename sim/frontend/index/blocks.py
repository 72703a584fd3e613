"""Sums over positions, channel by channel: what a Transpose asks for between dense layers along different axes.

Values of a sample stay where they are. A dense layer along positions is a convolution in groups, whose kernel has the size of
its source: each group sees its own channels at all positions, and makes a block of outputs of them.
"""

from math import gcd, prod

import numpy as np

from ...fusion.nodes import Joint, Linear, SumRegion, Tap
from .values import limited

__all__ = ["block_select", "block_product"]


def block_select(source, places):
    """The tap that puts the values at these places (channels,) of a node at one position, in the most groups; -1: the constant 0.
    None if there are no groups."""
    height, width, depth = source.shape
    count, there = len(places), np.flatnonzero(places >= 0)
    channels, positions = places[there] % depth, places[there] // depth
    common = gcd(depth, count)
    for groups in sorted((size for size in range(2, common + 1) if common % size == 0), reverse=True):
        if np.array_equal(channels // (depth // groups), there // (count // groups)):
            weights = np.zeros((height, width, depth // groups, count))
            weights[positions // width, positions % width, channels % (depth // groups), there] = 1
            return Tap(source, weights, groups=groups, exact=True)
    return None


def block_product(step, tensor, weights, exact=False):
    """`(node, index (rows, outputs))` of a dense layer with weights (inputs, outputs) along the last axis of a tensor, of which
    each row has all positions of channels of its own; None if that is not so."""
    source, (inputs, outputs) = tensor.source, weights.shape
    rows = tensor.index.reshape(-1, inputs)
    if isinstance(source, Joint) or tensor.index.min() < 0 or len(rows) < 2 or tensor.size != prod(source.shape):
        return None
    height, width, depth = source.shape
    if depth % len(rows):
        return None
    block = depth // len(rows)
    channels, positions = rows % depth, rows // depth
    groups = channels[:, 0] // block
    if (channels // block != groups[:, None]).any() or not np.array_equal(np.sort(tensor.index), np.arange(tensor.size)):
        return None
    limited(step, tensor.size, outputs)
    kernel = np.zeros((height, width, block, len(rows), outputs))
    for row, group in enumerate(groups):
        kernel[positions[row] // width, positions[row] % width, channels[row] % block, group] = weights
    one = Tap(source, kernel.reshape(height, width, block, -1), groups=len(rows), exact=exact)
    node = Linear(**step.titles, shape=(1, 1, len(rows) * outputs), parts=(SumRegion((one,), (1, 1)),))
    return node, groups[:, None] * outputs + np.arange(outputs)

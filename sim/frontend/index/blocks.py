"""Block products: dense layers along an axis of positions, computed separately for blocks of channels. Block products occur if a
model has a Transpose between dense layers along different axes.

The values of a sample are not moved. A dense layer along positions is a grouped convolution whose kernel is as large as its
input node. Each group reads its own channels at all positions, and computes a block of outputs.
"""

from math import gcd, prod

import numpy as np

from ...fusion.nodes import Joint, Linear, SumRegion, Tap
from .strided import LANES
from .values import has_all, limited

__all__ = ["block_cost", "block_product", "block_select"]


def block_select(source, places):
    """Returns a tap that gathers values of a node into the channels of one position. `places` (channels,) has the index of each
    value; -1 means the constant 0. The tap has as many groups as possible. Returns None if the indices do not split into
    groups."""
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


def block_cost(rows, weights):
    """Returns an estimate of the cycles of a block product: each value of a row is a kernel position, and each row a block."""
    return rows.shape[1] * -(-len(rows) * weights.shape[1] // LANES) * LANES


def block_product(step, tensor, weights, exact=False):
    """Converts a dense layer along the last axis of a tensor; `weights` is (inputs, outputs). Returns `(node, index (rows,
    outputs))`. Returns None if the rows of the tensor do not each hold all positions of a block of channels. `exact` : see
    :class:`sim.fusion.nodes.Tap`."""
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
    if (channels // block != groups[:, None]).any() or not has_all(tensor.index, tensor.size):
        return None
    limited(step, tensor.size, outputs)
    kernel = np.zeros((height, width, block, len(rows), outputs))
    for row, group in enumerate(groups):
        kernel[positions[row] // width, positions[row] % width, channels[row] % block, group] = weights
    one = Tap(source, kernel.reshape(height, width, block, -1), groups=len(rows), exact=exact)
    node = Linear(**step.titles, shape=(1, 1, len(rows) * outputs), parts=(SumRegion((one,), (1, 1)),))
    return node, groups[:, None] * outputs + np.arange(outputs)

"""Copies by strides: new nodes with the values of other nodes in any order, which no weights select."""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Copy, Input, Joint

__all__ = ["LANES", "choosing_cost", "copying_cost", "strided", "uncopied"]

LANES, _STAGE = 16, 64  # the array for which costs are estimated; cycles of a stage beside its passes
_AT_A_TIME = 1 << 18  # places whose cost is estimated together, so that large tensors take little memory


def copying_cost(source, order):
    """Returns an estimate of the cycles of a copy of values of a node: the vectors of the source that each vector of the result
    reads. A transposition of vectors reads each once. `order` has the places of the values, (rows, channels)."""
    step = max(1, _AT_A_TIME // max(LANES, order.shape[1]))
    return _STAGE + sum(_vectors_read(source, order[first : first + step]) for first in range(0, len(order), step))


def _vectors_read(source, order):
    padded = np.pad(order, ((0, 0), (0, -order.shape[1] % LANES)), constant_values=-1).reshape(-1, LANES)
    read = np.sort(padded // LANES, axis=1)
    counts = 1 + (read[:, 1:] != read[:, :-1]).sum(axis=1)
    if not isinstance(source, Joint):
        beside = (padded[:, 1:] - padded[:, :-1] == source.shape[2]) | (padded[:, 1:] < 0)
        counts = np.where(beside.all(axis=1), 2, counts)
    return int(counts.sum())


def choosing_cost(node):
    """Returns an estimate of the cycles of a node that copies by weights of zeros and ones."""
    cost = 0
    for part in node.parts:
        cost += _STAGE
        for one in part.taps:
            made = np.flatnonzero(one.select >= 0)
            tiles = len(np.unique(made // LANES * (1 << 32) + one.select[made] // LANES))
            cost += tiles * max(LANES, prod(part.size))
    return cost


def strided(step, source, index):
    """Returns a new node with the values that an index map (channel, y, x) selects from the node `source`. A copy of a copy is
    one copy."""
    channels, height, width = index.shape
    order = index.transpose(1, 2, 0).reshape(-1)
    places, firsts, end, first = np.full(len(order), -1), {}, 0, 0
    for one in source.sources if isinstance(source, Joint) else (source,):
        there = (order >= first) & (order < first + prod(one.shape))
        inner, moved = order[there] - first, [(one, range(prod(one.shape)))]
        if isinstance(one, Copy):
            inner, moved = one.index[inner], _parts(one)
        found = np.full(len(inner), -1)
        for part, numbers in moved:
            if part not in firsts:
                firsts[part], end = end, end + prod(part.shape)
            own = (inner >= numbers[0]) & (inner <= numbers[-1])
            found[own] = inner[own] - numbers[0] + firsts[part]
        places[there] = found
        first += prod(one.shape)
    return Copy(**step.titles, shape=(height, width, channels), sources=tuple(firsts), index=places)


def uncopied(step, tensor):
    """Returns the same values as a tensor of the nodes from which they are copied by strides: the host takes its results in any
    order. Returns the tensor itself if it has no copies, or if zeros or inputs of the model are among the values."""
    sources = tensor.source.sources if isinstance(tensor.source, Joint) else (tensor.source,)
    if not any(isinstance(one, Copy) for one in sources):
        return tensor
    copy = strided(step, tensor.source, tensor.index.reshape(-1, 1, 1))
    if (copy.index < 0).any() or any(isinstance(one, Input) for one in copy.sources):
        return tensor
    size = sum(prod(one.shape) for one in copy.sources)
    joint = Joint(**step.titles, shape=(1, 1, size), sources=copy.sources)
    return replace(tensor, source=joint if len(copy.sources) > 1 else copy.sources[0], index=copy.index)


def _parts(copy):
    ends = np.cumsum([0, *(prod(one.shape) for one in copy.sources)]).tolist()
    return [(one, range(first, end)) for one, first, end in zip(copy.sources, ends, ends[1:])]

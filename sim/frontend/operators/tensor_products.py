"""Matrix products of two tensors. The values of one tensor are the weights for the other, separately for each sample and head."""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Input, Joint, Linear, SumRegion, Tap
from ...ir.errors import ModelError
from ..index.narrow import narrowed
from ..index.strided import copying_cost
from ..index.values import limited, show, whole
from ..index.views import arranged, copied, in_place, in_roles, positions_in_order, select
from .concatenation import concat

__all__ = ["tensor_product"]

_MOST_HEADS = 256
_FEW_POSITIONS = 8  # up to this number, a stage for each position copies a transposed operand


def tensor_product(step, one, two):
    """Returns the matrix product of two symbolic tensors, as MatMul defines it."""
    lead, batch = _leading(step, one, two)
    (rows, inner), (_, columns) = one.dims[-2:], two.dims[-2:]
    limited(step, prod(lead), rows, inner)
    limited(step, prod(lead), inner, columns)
    limited(step, prod(lead), rows, columns)
    if prod(lead) > _MOST_HEADS:
        raise ModelError(f"{step.title}: multiplies {prod(lead)} pairs of matrices; at most {_MOST_HEADS} are supported")
    pairs = zip(*(np.broadcast_to(value.sample, (*lead, *value.dims[-2:])).reshape(-1, *value.dims[-2:]) for value in (one, two)))
    made = [_product(step, one.permuted(left, None), two.permuted(right, None)) for left, right in pairs]
    result = _beside(step, made) if len(made) > 1 else made[0].permuted(made[0].sample[None])
    return result.permuted(result.index.reshape(*lead, rows, columns), batch)


def _leading(step, one, two):
    """Returns the broadcast shape `(dims, batch)` of the axes before the last two, which hold the matrices."""
    text = f"{step.title}: {show(one)} times {show(two)}"
    if min(len(one.dims), len(two.dims)) < 2 or one.dims[-1] != two.dims[-2]:
        raise ModelError(f"{text} are not matrices with a common inner size")
    for value in (one, two):
        if value.batch is not None and value.batch >= len(value.dims) - 2:
            raise ModelError(f"{text}: would add or multiply values of different samples")
    rank = max(len(one.dims), len(two.dims))
    places = {None if value.batch is None else value.batch + rank - len(value.dims) for value in (one, two)}
    leads = [(1,) * (rank - len(value.dims)) + value.dims[:-2] for value in (one, two)]
    sizes = [{left, right} - {1} or {1} for left, right in zip(*leads)]
    if len(places) > 1 or any(len(size) > 1 for size in sizes):
        raise ModelError(f"{text}: the axes before the matrices do not fit")
    (batch,) = places
    joined = batch is not None and {lead[batch] for lead in leads}
    if joined and joined != {1} and (len(joined) > 1 or one.outer * two.outer > 1):  # heads may follow the samples on their axis
        raise ModelError(f"{text}: the batch must be an axis of its own")
    return tuple(size for (size,) in sizes), batch


def _product(step, one, two):
    """Returns the product of two matrices, a tensor (rows, columns). `one` is (rows, inner), `two` is (inner, columns)."""
    source, _, roles = _operand(step, narrowed(one), (1,))
    matrix, axis, _ = _operand(step, narrowed(two), (0, 1), level=True)
    (height, width, _), inner, columns = source.shape, *two.dims
    weights = np.broadcast_to(np.zeros(()), (1, 1, inner, columns))
    part = SumRegion((Tap(source, weights, matrix=matrix, rows=axis == 1),), (height, width))
    node = Linear(**step.titles, shape=(height, width, columns), parts=(part,))
    index = np.arange(prod(node.shape)) if roles is None else in_place(whole(node), (one.dims[0], columns), roles)
    return one.of(node, index.reshape(one.dims[0], columns))


def _operand(step, tensor, axes, level=False):
    """Returns `(node, axis, roles)` for a node that holds exactly the values of a matrix, in order. The values along `axis`, one
    of `axes`, are the channels of the node. The values along the other axis are the positions. If `level` is True, the positions
    must be in one row. If not, they may be in several rows, and `roles` is None. The matrix is copied if its node does not have
    this form."""
    if not level and (node := positions_in_order(tensor)) is not None:
        return node, 1, None
    for axis in axes:
        for seen, roles in arranged(tensor, last=axis):
            source = seen.source
            in_order = seen.complete and np.array_equal(seen.channels, np.arange(source.shape[2]))
            if in_order and not (level and source.shape[0] > 1):
                return source, axis, roles
    if isinstance(tensor.source, Joint):
        axis = min(axes, key=lambda one: copying_cost(tensor.source, np.moveaxis(tensor.sample, one, 1)))
    else:
        positions = tensor.sample // tensor.source.shape[2]
        axis = next((one for one in axes if (positions == positions.take([0], axis=one)).all()), axes[-1])
    roles = axis, None, 1 - axis
    index = in_roles(tensor.sample, roles)
    return _transposed(step, tensor.source, index) or copied(step, tensor, index), axis, roles


def _transposed(step, source, index):
    """Returns a node with the values of `source`, positions and channels exchanged. It is the product of the identity, stored as
    biases of a node, and `source`. Returns None if `index` (channel, y, x) is another copy, or if it has few positions."""
    height, width, channels = source.shape
    exchanged = height == 1 and not isinstance(source, (Input, Joint)) and channels > _FEW_POSITIONS
    if not exchanged or not np.array_equal(index, np.arange(width * channels).reshape(width, 1, channels)):
        return None
    limited(step, channels, channels)
    nothing = Tap(source, np.zeros((1, 1, channels, channels)), exact=True)
    size = (1, channels)
    ones = Linear(**step.titles, shape=(*size, channels), parts=(SumRegion((nothing,), size),), bias=np.eye(channels)[None])
    product = Tap(ones, np.broadcast_to(np.zeros(()), (1, 1, channels, width)), matrix=source)
    return Linear(**step.titles, shape=(*size, width), parts=(SumRegion((product,), size),))


def _beside(step, made):
    """Merges the results of several products. If their nodes have the same shape and index map, the results become adjacent
    channels of one node. Otherwise they are concatenated along a new first axis."""
    first = made[0]
    height, width, columns = first.source.shape
    same = all(one.source.shape == first.source.shape and np.array_equal(one.index, first.index) for one in made)
    if not same:
        raised = [one.permuted(one.sample[None]) for one in made]
        return concat(replace(step, arguments=raised, attributes={"axis": 0}), raised[0])
    depth, taps = columns * len(made), []
    limited(step, columns, depth)
    for number, one in enumerate(made):
        chosen = np.full(depth, -1)
        chosen[number * columns : (number + 1) * columns] = np.arange(columns)
        taps.append(select(one.source, chosen))
    node = Linear(**step.titles, shape=(height, width, depth), parts=(SumRegion(tuple(taps), (height, width)),))
    places = first.sample // columns * depth + first.sample % columns
    return first.of(node, np.stack([places + number * columns for number in range(len(made))]))

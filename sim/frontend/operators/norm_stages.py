"""The stages of a normalisation over given axes, without scale and bias:

    c = N (x - mean(x)),   u = c * c,   r = 1 / sqrt(mean(u) + N^2 epsilon),   y = c * r

N is the number of values, divided by a power of two. Sums of values therefore have exact weights. An offset that all values of x
have in common cancels in binary32, before any rounding to bfloat16. Without subtraction of the mean, c = x.

A mean is over all channels of a position, or over a group of channels. The channels of a group are taken at one position or at
all positions.
"""

from dataclasses import replace
from math import prod

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap, identity
from ...ir.errors import ModelError
from ..index.values import limited, whole
from ..index.views import arranged, arrangement, everything
from .elementwise import affine, product
from .quotients import inverse_root

__all__ = ["normalised"]

_LEAST = 2.0**-126
_DENSE = 64  # values up to which one dense layer centres them: N - 1 units are then exact in bfloat16
_ROWS = 16  # a pass over fewer rows takes as long, in estimates


def normalised(step, tensor, axes, epsilon, centred):
    """Returns a tensor normalised over `axes`. `centred` is True if the mean is subtracted first."""
    dims, rest = tensor.dims, [axis for axis in range(len(tensor.dims)) if axis not in axes]
    order = [*rest, *axes]
    rows = tensor.permuted(
        tensor.sample.transpose(order).reshape(*(dims[axis] for axis in rest), -1),
        None if tensor.batch is None else rest.index(tensor.batch),
    )
    rows = everything(step, rows)
    groups = None if any(seen.complete for seen, _ in arranged(rows, last=len(rest))) else _groups(rows)
    if groups is None:
        rows, seen, _ = arrangement(step, rows, last=len(rest))
        if not seen.complete or prod(seen.source.shape) != rows.size:
            raise ModelError(f"{step.title}: the arrangement of its input's values is not supported")
        groups = np.ones((rows.dims[-1],) * 2), False
    node = _Norm(step, rows, *groups).stages(max(epsilon, _LEAST) if epsilon else 0.0, centred)
    sample = rows.sample.reshape([dims[axis] for axis in order]).transpose(np.argsort(order))
    return replace(rows.permuted(sample, tensor.batch), source=node)


def _groups(rows):
    """Returns the arguments `(same, everywhere)` of :class:`_Norm`. Returns None if a row of values is not a group of channels
    at one position or at all positions."""
    channels = rows.source.shape[2]
    index = rows.index.reshape(-1, rows.dims[-1])
    own, positions = index % channels, index // channels
    first = own.min(axis=1)
    group_of = np.empty(channels, int)
    group_of[own] = first[:, None]
    if (group_of[own] != first[:, None]).any():
        return None
    one = (positions == positions[:, :1]).all()
    every = len(np.unique(first)) == len(index)
    return (np.float64(group_of[:, None] == group_of), not one) if one or every else None


class _Norm:
    """Creates the stages that normalise a tensor (rows, values), whose values are exactly those of its node.

    Parameters
    ----------
    same : float array (channels, channels)
        1 for two channels of the same group, else 0.
    everywhere : bool
        True: a mean is over all positions. False: a mean is over one position.
    """

    def __init__(self, step, rows, same, everywhere):
        self.step, self.rows, self.same, self.everywhere = step, rows, same, everywhere
        self.count, self.source = rows.dims[-1], rows.source
        self.unit = 2.0 ** -(self.count.bit_length() - 1)
        self.of_channel = everywhere and self.count == prod(self.source.shape[:2])  # its own group
        limited(step, *same.shape)

    def stages(self, epsilon, centred):
        if centred:
            self.source, epsilon = self._centred(), epsilon * (self.count * self.unit) ** 2
        values = self._values(self.source)
        squares = product(self.step, values, values).source
        # All channels of a group have the same mean. One of them suffices for a single group at each position.
        single = self.same.all() and not self.everywhere
        variance = self._values(self._mean(squares, 1 / self.count, 1 if single else None))
        if epsilon:
            variance = affine(self.step, variance, shift=np.array(epsilon))
        root = inverse_root(self.step, variance)
        if self.everywhere:
            root = self._values(self._linear(self._spread(root.source, 1), size=self.source.shape[:2]))
        return product(self.step, values, root).source

    def _values(self, node):
        return replace(self.rows.permuted(whole(node), None), source=node)

    def _linear(self, *taps, size):
        return Linear(**self.step.titles, shape=(*size, taps[0].weights.shape[3]), parts=(SumRegion(taps, size),))

    # Taps

    def _own(self, node, weight):
        channels = node.shape[2]
        return replace(identity(node).taps[0], weights=np.full((1, 1, 1, channels), weight), select=None)

    def _spread(self, node, weight):
        """Returns a tap that reads the values of a node with a single position, times `weight`, at all positions."""
        return replace(self._own(node, weight), stride=(0, 0))

    def _dense(self, node, weights):
        """Returns a tap that is a dense layer at each position: of each group by itself if groups are consecutive channels, and
        `weights` are 0 between groups."""
        channels, size = len(self.same), int(self.same[0].sum())
        groups = channels // size
        if (
            groups == 1
            or self.step.training
            or weights.shape != self.same.shape
            or (self.same != np.kron(np.eye(groups), np.ones((size, size)))).any()
        ):
            return Tap(node, weights[None, None], exact=True)
        columns = np.arange(channels)
        own = weights[columns // size * size + np.arange(size)[:, None], columns]
        return Tap(node, own[None, None], groups=groups, exact=True)

    # Means

    def _mean(self, node, weight, channels=None):
        """Returns the node of the sums over the groups of channels and positions, times `weight`. `channels` is the number of
        channels of the result. If it is given, all channels of the result are equal. Default: the channels of `node`."""
        if not self.everywhere:
            return self._linear(self._dense(node, self.same[:, :channels] * weight), size=node.shape[:2])
        for kernel in self._windows(*node.shape[:2]):
            last = kernel == node.shape[:2] and self.of_channel
            size = tuple(have // part for have, part in zip(node.shape, kernel))
            weights = np.full((*kernel, 1, node.shape[2]), weight if last else 1.0)
            node = self._linear(Tap(node, weights, stride=kernel, groups=node.shape[2], exact=True), size=size)
        return node if self.of_channel else self._linear(self._dense(node, self.same * weight), size=(1, 1))

    def _windows(self, height, width):
        """Returns the sizes of one or two windows with which all positions are added up in the fewest estimated cycles. Windows
        of the first size add up positions; windows of the second size add up the sums."""
        divisors = [[part for part in range(1, size + 1) if size % part == 0] for size in (height, width)]

        def cycles(kernel):
            count = prod(kernel)
            left = height * width // count
            return count * max(left, _ROWS) + left * _ROWS * (left > 1)

        kernel = min(((y, x) for y in divisors[0] for x in divisors[1]), key=cycles)
        rest = height // kernel[0], width // kernel[1]
        return [kernel] if rest == (1, 1) else [kernel, rest]

    def _centred(self):
        """Returns the node of N (x - mean(x)). The mean is represented as a sum of two bfloat16 numbers, because one bfloat16
        number is not precise enough. For few channels, one dense layer subtracts the mean without computing it separately."""
        node, size, factor = self.source, self.source.shape[:2], self.count * self.unit
        if self.everywhere:
            near = self._linear(self._own(node, factor), self._spread(self._mean(node, self.unit), -1), size=size)
            return self._linear(self._own(near, 1), self._spread(self._mean(near, 1 / self.count), -1), size=size)
        if self.count <= _DENSE:
            return self._linear(self._dense(node, factor * np.eye(len(self.same)) - self.unit * self.same), size=size)
        if not self.same.all():
            return self._linear(self._own(node, factor), self._dense(node, -self.unit * self.same), size=size)
        first = self._mean(node, self.unit, 1)
        both = self._dense(node, np.full((self.count, 2), self.unit))
        parts = self._linear(both, self._dense(first, np.array([[0.0, -1.0]])), size=size)
        return self._linear(self._own(node, factor), self._dense(parts, np.full((2, self.count), -1.0)), size=size)

"""The definition of gradients: one function a rule, each independent of how the core does it.

Activations A, gradients D of stages' sums and probabilities P are bfloat16 (batch, height, width, channels), gradients of
parameters binary32. Every sum is :func:`sim.golden.arithmetic.matmul`'s: in order, from +0.

:class:`Sums` are the sums over many numbers, in numpy; :mod:`sim.golden.compiled_sums` has the same bits in less time.
"""

import numpy as np

from ..ir.training import NOWHERE
from .arithmetic import add, bfloat16, matmul, multiply, ordered, relu, round_bfloat16
from .inverse_root import inverse_root_table
from .network import add_term, patches
from .softmax import softmax
from .table_lookup import lookup

__all__ = ["Sums", "last_gradient", "data_gradient", "stage_gradient", "upper_half", "scaled", "is_broadcast"]

_BLOCK = 1 << 23  # operands gathered at a time


def upper_half(values):
    """The upper halves of float32 numbers, cut off, as bfloat16."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(bfloat16)


def scaled(start, values, factor):
    """float32: `start + factor * values`, as a pass over a diagonal tile has it. Values, and one factor or one for each, are
    bfloat16."""
    product = multiply(np.ascontiguousarray(values).view(np.uint16), np.ascontiguousarray(factor).view(np.uint16))
    return np.asarray(add(np.ascontiguousarray(start).view(np.uint32), product)).view(np.float32).reshape(start.shape)


def _blocks(samples, each):
    step = max(1, int(_BLOCK // each))
    return [slice(first, first + step) for first in range(0, samples, step)]


def is_broadcast(sums, values, term):
    """Returns whether each sum has one product that is not of padding, as in the gradient of an average over all positions."""
    if values.shape[1:3] != (1, 1) or term.kernel == (1, 1) or term.weights.shape[2] != 1 or term.dilation != (1, 1):
        return False
    if sums.shape[1:3] != term.kernel or term.padding != tuple(size - 1 for size in term.kernel):
        return False
    return bool(np.isfinite(term.weights.astype(np.float32)).all())


def _broadcast(sums, values, term, scaled):
    """Returns what :meth:`Sums.add_term` does where :func:`is_broadcast`: the one product, and of the products of padding, +0
    or -0, that a sum of -0 becomes +0 where one of them is +0."""
    weights = term.weights[:, :, 0]
    positive = ~np.signbit(weights.astype(np.float32)).reshape(-1, weights.shape[2])
    before = np.cumsum(positive, axis=0) - positive  # products of +0 before the kernel's position, and after it
    after = positive.sum(axis=0) - before - positive
    before, after = (count.reshape(weights.shape)[::-1, ::-1] > 0 for count in (before, after))
    given = np.repeat(values, sums.shape[3] // term.groups, axis=3)
    with np.errstate(invalid="ignore"):  # of NaN
        start = np.where((np.abs(sums) < np.float32(2.0**-126)) & before, np.float32(0), sums)
    result = scaled(start, np.broadcast_to(given, sums.shape), np.broadcast_to(weights[::-1, ::-1], sums.shape))
    return np.where((result == 0) & after, np.float32(0), result)


class Sums:
    """The sums of a step, as they are defined. Terms are :class:`sim.ir.graph.Term`."""

    def add_term(self, sums, values, term):
        """Sums, float32 (batch, height, width, channels), and those of one more term over these values."""
        if is_broadcast(sums, values, term):
            return _broadcast(sums, values, term, self.scaled)
        each = np.prod(sums.shape[1:3]) * term.weights[..., 0].size * term.groups
        return np.concatenate([add_term(sums[part], values[part], term) for part in _blocks(len(sums), each)])

    def weight_gradient(self, values, term, gradient):
        """float32, of the term's shape: the sum over (sample, y, x) of what the term reads of these values, times D."""
        groups, outputs = term.groups, gradient.shape[3] // term.groups
        size, inputs = gradient.shape[1:3], term.weights.shape[2]
        rows = term.kernel[0] * term.kernel[1] * inputs
        total = np.zeros((groups, rows, outputs), np.float32)
        for part in _blocks(len(values), np.prod(size) * rows * groups):
            seen = patches(values[part], term, size)
            seen = seen.reshape(-1, seen.shape[3], groups, inputs)
            of_sums = gradient[part].reshape(len(seen), groups, outputs)
            for g in range(groups):
                operands = np.ascontiguousarray(seen[:, :, g].reshape(len(seen), rows).T)
                total[g] = matmul(operands, np.ascontiguousarray(of_sums[:, g]), total[g])
        return total.transpose(1, 0, 2).reshape(*term.kernel, inputs, groups * outputs)

    def bias_gradient(self, gradient):
        """float32 (channels,): the sum over (sample, y, x) of D."""
        rows = gradient.reshape(-1, gradient.shape[3])
        return matmul(np.ones((1, len(rows)), bfloat16), rows)[0]

    def pool(self, sums, pool, rectified):
        """The largest of each window, float32 (batch, height, width, channels), and the number uint8 of the first place in the
        window that has it, in order of y, x; with `rectified`, NOWHERE if it is not above 0. Windows do not overlap."""
        batch, _, _, channels = sums.shape
        (height, width), (down, across) = pool.size, pool.window
        keys = ordered(np.ascontiguousarray(sums[:, : height * down, : width * across]).view(np.int32))
        keys = keys.reshape(batch, height, down, width, across, channels).swapaxes(2, 3)
        keys = keys.reshape(batch, height, width, down * across, channels)
        index, largest = keys.argmax(axis=3).astype(np.uint8), ordered(keys.max(axis=3)).view(np.float32)
        if rectified:
            index[~(largest > 0)] = NOWHERE
        return largest, index

    def spread(self, gradient, index, pool, size):
        """bfloat16 (batch, *size, channels): each number of a gradient at its place in its window, +0 elsewhere."""
        (height, width), (down, across) = pool.size, pool.window
        result = np.zeros((len(gradient), *size, gradient.shape[3]), bfloat16)
        for y in range(down):
            for x in range(across):
                chosen = np.where(index == y * across + x, gradient, bfloat16(0))
                result[:, y : height * down : down, x : width * across : across] = chosen
        return result

    def kept(self, gradient, result):
        """bfloat16: a gradient where the result is above 0, else +0."""
        bits = result.view(np.uint16)
        return np.where((bits > 0) & (bits <= 0x7F80), gradient, bfloat16(0))  # neither NaN

    def rounded(self, values, rectified=False):
        """float32 -> bfloat16, through relu if `rectified`."""
        if rectified:
            values = np.asarray(relu(np.ascontiguousarray(values).view(np.uint32))).view(np.float32)
        return round_bfloat16(values)

    def scaled(self, start, values, factor):
        """:func:`scaled`."""
        return scaled(start, values, factor)

    def added(self, one, two):
        """float32 sums of float32, as the core's adders have them."""
        bits = (np.ascontiguousarray(values).view(np.uint32) for values in (one, two))
        return np.asarray(add(*bits)).view(np.float32)

    def product(self, one, two):
        """bfloat16 of the products of bfloat16, as MULTIPLY makes them."""
        start = np.full(one.shape, -0.0, np.float32)  # to which a product of either sign can be added without a change
        return self.rounded(self.scaled(start, one, two))

    def looked_up(self, values, table):
        """bfloat16 of float32 values, by a :class:`sim.golden.table_lookup.Table`."""
        return lookup(np.ascontiguousarray(values).view(np.uint32), table).view(bfloat16)

    def inverse_root(self, values):
        """1 / sqrt of float32 values, bfloat16, by the table of :mod:`sim.golden.inverse_root`."""
        return self.looked_up(values, inverse_root_table())


def last_gradient(logits, targets):
    """D of the last stage's sums, bfloat16 (batch, classes): P - T, for logits float32 and targets bfloat16 (batch, classes)."""
    bits = np.ascontiguousarray(logits).view(np.uint32)
    probabilities = np.asarray(softmax(bits)).view(bfloat16)
    return round_bfloat16(scaled(probabilities.astype(np.float32), targets, np.full(targets.shape, -1, bfloat16)))


def data_gradient(graph, one, gradients, weights, sums):
    """The gradient of a tensor, bfloat16 (batch, height, width, channels), from those of its readers' sums.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    one : sim.ir.training.SumsGradient
        Of the stage that makes the tensor.
    gradients : dict of str to bfloat16 (batch, height, width, channels)
        D of the readers.
    weights : function of a GradientTerm
        The weights of its reader, bfloat16.
    sums : Sums
    """
    stage = graph.graph.stages[one.stage]
    total = None
    for part in one.terms:
        source, (down, across) = gradients[part.source], graph.stretch(part)
        if total is None:
            total = np.zeros((len(source), *stage.result_size, stage.channels), np.float32)
        if (down, across) != (1, 1):
            batch, height, width, channels = source.shape
            apart = np.zeros((batch, (height - 1) * down + 1, (width - 1) * across + 1, channels), bfloat16)
            apart[:, ::down, ::across] = source
            source = apart
        total = sums.add_term(total, source, graph.mirrored(part, weights(part)))
    return sums.rounded(total)


def stage_gradient(stage, gradient, result, index, mask, sums, slope=None):
    """D of a stage's sums from the gradient of its result: times the dropout mask, times the slope (functions by table), kept
    where the result is above 0 (relu) or at the largest place of each window (pooling).

    Parameters
    ----------
    gradient, result : bfloat16 (batch, height, width, channels)
    index : uint8 (batch, height, width, channels) or None
        Of a stage with pooling.
    mask, slope : bfloat16 (batch, height, width, channels) or None
    """
    for factor in (mask, slope):
        if factor is not None:
            gradient = sums.product(gradient, factor)
    if stage.pool:
        return sums.spread(gradient, index, stage.pool, stage.sums_size)
    if stage.function.name == "relu":
        return sums.kept(gradient, result)
    return gradient

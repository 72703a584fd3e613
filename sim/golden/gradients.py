"""The definition of gradients: one function per rule, independent of the core's implementation.

Activations A, gradients D of stages' sums and probabilities P are bfloat16 (batch, height, width, channels). Gradients of
parameters are binary32. Every sum is accumulated as in :func:`sim.golden.arithmetic.matmul`: in order, from +0.

:class:`Sums` has the sums over many numbers, in numpy. :mod:`sim.golden.compiled_sums` computes the same bits in less time.
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
    """Returns the upper halves of float32 numbers, truncated, as bfloat16."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(bfloat16)


def scaled(start, values, factor):
    """Computes float32 `start + factor * values`, like a pass over a diagonal tile. Values and factors are bfloat16, with one
    factor for all or one for each."""
    product = multiply(np.ascontiguousarray(values).view(np.uint16), np.ascontiguousarray(factor).view(np.uint16))
    return np.asarray(add(np.ascontiguousarray(start).view(np.uint32), product)).view(np.float32).reshape(start.shape)


def _blocks(samples, each):
    step = max(1, int(_BLOCK // each))
    return [slice(first, first + step) for first in range(0, samples, step)]


def is_broadcast(sums, values, term):
    """Checks whether each sum has exactly one product that is not padding, as in the gradient of a global average."""
    if values.shape[1:3] != (1, 1) or term.kernel == (1, 1) or term.weights.shape[2] != 1 or term.dilation != (1, 1):
        return False
    if sums.shape[1:3] != term.kernel or term.padding != tuple(size - 1 for size in term.kernel):
        return False
    return bool(np.isfinite(term.weights.astype(np.float32)).all())


def _broadcast(sums, values, term, scaled):
    """Computes :meth:`Sums.add_term` for a term with :func:`is_broadcast`: the single product. Products of padding are +0 or -0;
    a sum of -0 becomes +0 if one of these products is +0."""
    weights = term.weights[:, :, 0]
    positive = ~np.signbit(weights.astype(np.float32)).reshape(-1, weights.shape[2])
    before = np.cumsum(positive, axis=0) - positive  # products of +0 before and after the kernel's position
    after = positive.sum(axis=0) - before - positive
    before, after = (count.reshape(weights.shape)[::-1, ::-1] > 0 for count in (before, after))
    given = np.repeat(values, sums.shape[3] // term.groups, axis=3)
    with np.errstate(invalid="ignore"):  # NaN
        start = np.where((np.abs(sums) < np.float32(2.0**-126)) & before, np.float32(0), sums)
    result = scaled(start, np.broadcast_to(given, sums.shape), np.broadcast_to(weights[::-1, ::-1], sums.shape))
    return np.where((result == 0) & after, np.float32(0), result)


class Sums:
    """The sums of a training step, by definition. Terms are :class:`sim.ir.graph.Term`."""

    def add_term(self, sums, values, term):
        """Adds one term over these values to the sums, float32 (batch, height, width, channels)."""
        if is_broadcast(sums, values, term):
            return _broadcast(sums, values, term, self.scaled)
        each = np.prod(sums.shape[1:3]) * term.weights[..., 0].size * term.groups
        return np.concatenate([add_term(sums[part], values[part], term) for part in _blocks(len(sums), each)])

    def weight_gradient(self, values, term, gradient):
        """Returns float32 of the term's shape: the sum over (sample, y, x) of the term's operands in these values, times D."""
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
        """Returns float32 (channels,): the sum over (sample, y, x) of D."""
        rows = gradient.reshape(-1, gradient.shape[3])
        return matmul(np.ones((1, len(rows)), bfloat16), rows)[0]

    def pool(self, sums, pool, rectified):
        """Returns the largest of each window, float32 (batch, height, width, channels), and uint8 indices: the first position of
        the largest in its window, in order of y, x. With `rectified`, the index is NOWHERE if the largest is not above 0. Windows
        do not overlap."""
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
        """Returns bfloat16 (batch, *size, channels): each number of a gradient at its position in its window, +0 elsewhere."""
        (height, width), (down, across) = pool.size, pool.window
        result = np.zeros((len(gradient), *size, gradient.shape[3]), bfloat16)
        for y in range(down):
            for x in range(across):
                chosen = np.where(index == y * across + x, gradient, bfloat16(0))
                result[:, y : height * down : down, x : width * across : across] = chosen
        return result

    def kept(self, gradient, result):
        """Returns bfloat16: the gradient where the result is above 0, else +0."""
        bits = result.view(np.uint16)
        return np.where((bits > 0) & (bits <= 0x7F80), gradient, bfloat16(0))  # false for NaN

    def rounded(self, values, rectified=False):
        """Rounds float32 to bfloat16, through relu if `rectified`."""
        if rectified:
            values = np.asarray(relu(np.ascontiguousarray(values).view(np.uint32))).view(np.float32)
        return round_bfloat16(values)

    def scaled(self, start, values, factor):
        """Computes :func:`scaled`."""
        return scaled(start, values, factor)

    def added(self, one, two):
        """Adds float32 numbers, like the core's adders."""
        bits = (np.ascontiguousarray(values).view(np.uint32) for values in (one, two))
        return np.asarray(add(*bits)).view(np.float32)

    def product(self, one, two):
        """Returns the bfloat16 products of bfloat16 numbers, like MULTIPLY."""
        start = np.full(one.shape, -0.0, np.float32)  # adding a product of either sign to -0 leaves it unchanged
        return self.rounded(self.scaled(start, one, two))

    def looked_up(self, values, table):
        """Returns bfloat16 of float32 values, by a :class:`sim.golden.table_lookup.Table`."""
        return lookup(np.ascontiguousarray(values).view(np.uint32), table).view(bfloat16)

    def inverse_root(self, values):
        """Returns 1 / sqrt of float32 values as bfloat16, by the table of :mod:`sim.golden.inverse_root`."""
        return self.looked_up(values, inverse_root_table())


def last_gradient(logits, targets):
    """Returns D of the last stage's sums, bfloat16 (batch, classes): P - T, for float32 logits and bfloat16 targets (batch,
    classes)."""
    bits = np.ascontiguousarray(logits).view(np.uint32)
    probabilities = np.asarray(softmax(bits)).view(bfloat16)
    return round_bfloat16(scaled(probabilities.astype(np.float32), targets, np.full(targets.shape, -1, bfloat16)))


def data_gradient(graph, one, gradients, weights, sums):
    """Returns the gradient of a tensor, bfloat16 (batch, height, width, channels), from the gradients of its readers' sums.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    one : sim.ir.training.SumsGradient
        For the stage that writes the tensor.
    gradients : dict of str to bfloat16 (batch, height, width, channels)
        D of the readers.
    weights : function of a GradientTerm
        Returns the weights of its reader, bfloat16.
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
    """Returns D of a stage's sums from the gradient of its result: times the dropout mask, times the slope (functions by table),
    kept where the result is above 0 (relu) or at the position of the largest of each window (pooling).

    Parameters
    ----------
    gradient, result : bfloat16 (batch, height, width, channels)
    index : uint8 (batch, height, width, channels) or None
        Only of a stage with pooling.
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

"""The definition of the sums of a training step, independent of the core's implementation.

Results of stages and gradients D of stages' sums are bfloat16 (batch, height, width, channels). Gradients of parameters are
binary32. Every sum is accumulated in order, as in :func:`sim.golden.arithmetic.matmul`.

:class:`Sums` computes the long sums with numpy. :mod:`sim.golden.compiled_sums` computes the same bits in less time.
"""

from dataclasses import replace

import numpy as np

from ..ir.stage import NOWHERE
from .arithmetic import add, bfloat16, matmul, multiply, ordered, relu, round_bfloat16
from .table_lookup import lookup
from .windows import add_term, patches

__all__ = ["Sums", "upper_half", "scaled", "in_parts", "is_broadcast"]

_BLOCK = 1 << 23  # operands copied together at a time


def upper_half(values):
    """Truncates float32 numbers to their upper 16 bits, as bfloat16."""
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(bfloat16)


def scaled(start, values, factor):
    """Computes `start + factor * values` in float32, as a matrix product with a diagonal tile does. Values and factors are
    bfloat16, with one factor for all values or one factor for each."""
    product = multiply(np.ascontiguousarray(values).view(np.uint16), np.ascontiguousarray(factor).view(np.uint16))
    return np.asarray(add(np.ascontiguousarray(start).view(np.uint32), product)).view(np.float32).reshape(start.shape)


def _blocks(samples, each):
    step = max(1, int(_BLOCK // each))
    return [slice(first, first + step) for first in range(0, samples, step)]


def in_parts(add, sums, values, term):
    """Adds the products of a term by `add`, for so many rows of the kernel at a time, or columns of a row, that the copied
    operands of a sample take little memory. Products are added in the same order."""
    axis = 0 if term.kernel[0] > 1 else 1
    count, each = term.kernel[axis], np.prod(sums.shape[1:3]) * term.weights[..., 0].size * term.groups
    step = max(1, int(_BLOCK * count // max(1, each)))
    for first in range(0, count, step):
        padding = list(term.padding)
        padding[axis] -= first * term.dilation[axis]
        weights = term.weights[(slice(None),) * axis + (slice(first, first + step),)]
        part = replace(term, weights=weights, padding=tuple(padding))
        sums = in_parts(add, sums, values, part) if axis == 0 and each > _BLOCK * count else add(sums, values, part)
    return sums


def is_broadcast(sums, values, term):
    """Returns True if each sum of a term has exactly one product that is not a product of padding. An example is the gradient of
    a global average."""
    if values.shape[1:3] != (1, 1) or term.kernel == (1, 1) or term.weights.shape[2] != 1:
        return False
    if not term.stride == term.dilation == (1, 1):
        return False
    if sums.shape[1:3] != term.kernel or term.padding != tuple(size - 1 for size in term.kernel):
        return False
    return bool(np.isfinite(term.weights.astype(np.float32)).all())


def _broadcast(sums, values, term, scaled):
    """Computes :meth:`Sums.add_term` for a term that :func:`is_broadcast` accepts. It multiplies only the one operand that is not
    padding."""
    weights = term.weights[:, :, 0]
    given = np.repeat(values, sums.shape[3] // term.groups, axis=3)
    return scaled(sums, np.broadcast_to(given, sums.shape), np.broadcast_to(weights[::-1, ::-1], sums.shape))


class Sums:
    """The long sums of a training step, computed with numpy as they are defined. Terms are :class:`.Convolution`."""

    def add_term(self, sums, values, term):
        """Adds the products of one term to `sums`, float32 (batch, height, width, channels). `values` is the term's source
        tensor."""
        if is_broadcast(sums, values, term):
            return _broadcast(sums, values, term, self.scaled)
        each = np.prod(sums.shape[1:3]) * term.weights[..., 0].size * term.groups
        return np.concatenate([in_parts(add_term, sums[part], values[part], term) for part in _blocks(len(sums), each)])

    def weight_gradient(self, values, term, gradient, start=None):
        """Computes the gradient of a term's weights, float32 in the shape of the weights. It is the sum, over samples and
        positions, of the operand of each weight in `values`, times the stage's gradient D in `gradient`. The sum starts from
        `start`, float32 in the same shape. Default: +0."""
        groups, outputs = term.groups, gradient.shape[3] // term.groups
        size, inputs = gradient.shape[1:3], term.weights.shape[2]
        rows = term.kernel[0] * term.kernel[1] * inputs
        total = np.zeros((groups, rows, outputs), np.float32)
        if start is not None:
            total[:] = start.reshape(rows, groups, outputs).transpose(1, 0, 2)
        for part in _blocks(len(values), np.prod(size) * rows * groups):
            seen = patches(values[part], term, size)
            seen = seen.reshape(-1, seen.shape[3], groups, inputs)
            of_sums = gradient[part].reshape(len(seen), groups, outputs)
            for g in range(groups):
                operands = np.ascontiguousarray(seen[:, :, g].reshape(len(seen), rows).T)
                total[g] = matmul(operands, np.ascontiguousarray(of_sums[:, g]), total[g])
        return total.transpose(1, 0, 2).reshape(*term.kernel, inputs, groups * outputs)

    def bias_gradient(self, gradient):
        """Returns the gradient of a bias, float32 (channels,): the sum of `gradient`, D of the stage, over samples and
        positions."""
        rows = gradient.reshape(-1, gradient.shape[3])
        return matmul(np.ones((1, len(rows)), bfloat16), rows)[0]

    def pool(self, sums, pool, rectified):
        """Computes max pooling. Returns the largest number of each window, float32 (batch, height, width, channels), and its
        index, uint8: the first position of the largest in its window, row by row. With `rectified`, the index is NOWHERE if the
        largest is not above 0. Windows must not overlap."""
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
        """Computes the gradient of max pooling: bfloat16 (batch, *size, channels). Each number of `gradient` is copied to
        position `index` of its window; all other positions are +0."""
        (height, width), (down, across) = pool.size, pool.window
        result = np.zeros((len(gradient), *size, gradient.shape[3]), bfloat16)
        for y in range(down):
            for x in range(across):
                chosen = np.where(index == y * across + x, gradient, bfloat16(0))
                result[:, y : height * down : down, x : width * across : across] = chosen
        return result

    def kept(self, gradient, result):
        """Computes the gradient of ReLU in bfloat16: `gradient` where `result` is above 0, and +0 elsewhere."""
        bits = result.view(np.uint16)
        return np.where((bits > 0) & (bits <= 0x7F80), gradient, bfloat16(0))  # NaN compares as not above 0

    def rounded(self, values, rectified=False):
        """Rounds float32 to bfloat16, after ReLU if `rectified`."""
        if rectified:
            values = np.asarray(relu(np.ascontiguousarray(values).view(np.uint32))).view(np.float32)
        return round_bfloat16(values)

    def scaled(self, start, values, factor):
        """Computes the function :func:`scaled` of this module. Subclasses may compute it faster."""
        return scaled(start, values, factor)

    def added(self, one, two):
        """Adds two float32 arrays with the arithmetic of the core's adders."""
        bits = (np.ascontiguousarray(values).view(np.uint32) for values in (one, two))
        return np.asarray(add(*bits)).view(np.float32)

    def product(self, one, two):
        """Multiplies bfloat16 arrays as the instruction MULTIPLY does. Returns bfloat16."""
        start = np.zeros(one.shape, np.float32)  # added to +0, a product of -0 is +0
        return self.rounded(self.scaled(start, one, two))

    def looked_up(self, values, table):
        """Applies a :class:`sim.golden.table_lookup.Table` to float32 values. Returns bfloat16."""
        return lookup(np.ascontiguousarray(values).view(np.uint32), table).view(bfloat16)

"""The reference model of windows: convolutions and max pooling. :mod:`sim.golden.arithmetic` has the single matrix product."""

from dataclasses import dataclass

import numpy as np

from ..ir.stage import span
from .arithmetic import matmul, matmuls, ordered

__all__ = ["Convolution", "add_term", "patches", "pool_max"]

_NARROW = 4  # groups with at most this number of outputs are computed together


@dataclass(frozen=True, eq=False)
class Convolution:
    """The weights of a convolution, bfloat16 (kernel height, kernel width, channels of the source / groups, channels of the
    result), and its windows, as in :class:`sim.ir.stage.Term`."""

    weights: np.ndarray
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1

    @property
    def kernel(self):
        return self.weights.shape[:2]


def patches(values, term, size):
    """Returns the operands of a term: bfloat16 (batch, height, width, kernel positions, channels of the source). Kernel positions
    are in the order ky, kx."""
    batch, height, width, channels = values.shape
    need = [
        span(count, stride, kernel, dilation)
        for count, stride, kernel, dilation in zip(size, term.stride, term.kernel, term.dilation)
    ]
    padded = np.zeros((batch, *need, channels), values.dtype)
    source, target = [], []
    for have, wanted, before in zip((height, width), need, term.padding):
        first = max(0, -before)
        source.append(slice(first, max(first, min(have, wanted - before))))  # empty if only padding is read
        target.append(slice(max(0, before), max(0, before) + source[-1].stop - source[-1].start))
    padded[:, target[0], target[1]] = values[:, source[0], source[1]]
    each, rows, columns, one = padded.strides
    steps = rows * term.stride[0], columns * term.stride[1], rows * term.dilation[0], columns * term.dilation[1]
    shape = batch, *size, *term.kernel, channels
    seen = np.lib.stride_tricks.as_strided(padded, shape, (each, *steps, one))
    made, whole = np.empty(shape, values.dtype), (slice(None),) * 2
    # numpy copies in runs: of columns of the result, or of columns of the kernel with their channels
    for place in np.ndindex(*term.kernel) if channels == 1 and term.kernel[1] < size[1] else (whole,):
        made[:, :, :, *place] = seen[:, :, :, *place]
    return made.reshape(batch, *size, -1, channels)


def add_term(sums, values, term):
    """Adds the products of one term to `sums`, float32 (batch, height, width, channels). `values` is the term's source tensor,
    bfloat16 (batch, height, width, channels)."""
    shape = sums.shape
    gathered = patches(values, term, shape[1:3])
    gathered = gathered.reshape(-1, gathered.shape[3], term.groups, gathered.shape[4] // term.groups)
    weights = term.weights.reshape(gathered.shape[1], gathered.shape[3], term.groups, -1)
    parts, rows = sums.reshape(-1, term.groups, weights.shape[3]), len(gathered)
    if term.groups > 1 and weights.shape[3] <= _NARROW:
        return matmuls(gathered, weights, parts).reshape(shape)
    results = [
        matmul(
            np.ascontiguousarray(gathered[:, :, g]).reshape(rows, -1),
            np.ascontiguousarray(weights[:, :, g]).reshape(-1, weights.shape[3]),
            np.ascontiguousarray(parts[:, g]),
        )
        for g in range(term.groups)
    ]
    return np.stack(results, axis=1).reshape(shape)


def pool_max(sums, pool):
    """Returns the largest number of every pooling window, float32 (batch, height, width, channels)."""
    keys = ordered(np.ascontiguousarray(sums).view(np.int32))
    for axis, (count, stride, before) in enumerate(zip(pool.size, pool.stride, pool.padding), 1):
        all_before, starts = (slice(None),) * axis, np.arange(count) * stride - before
        result = np.full((*keys.shape[:axis], count, *keys.shape[axis + 1 :]), np.iinfo(np.int32).min, np.int32)
        for number in range(pool.window[axis - 1]):
            read = starts + number * pool.dilation[axis - 1]
            there = np.flatnonzero((read >= 0) & (read < keys.shape[axis]))
            place = (*all_before, there)
            result[place] = np.maximum(result[place], keys[(*all_before, read[there])])
        keys = result
    return ordered(keys).view(np.float32)

"""Fast sums of a training step: the same bits as :class:`sim.golden.sums.Sums`, computed by several threads and by loops
compiled with numba. Numba is optional."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..ir.stage import NOWHERE
from .arithmetic import bfloat16
from .sums import Sums, in_parts, is_broadcast
from .table_lookup import ALWAYS, NEVER
from .windows import Convolution, patches

__all__ = ["fastest_sums"]

_LANES = 16  # the number of outputs is padded to a multiple of this
_ROWS_BYTES = 24 << 10  # bytes of sums that one call of `correlate` updates
_RUN = 16  # contiguous values per operand above which operands need not be copied together
_FEW = 1 << 14  # amount of work below which a second thread does not pay


def fastest_sums(threads=None):
    """Returns a :class:`Sums` compiled by numba, with `threads` threads (None: one per processor). Without numba, it returns the
    numpy :class:`Sums`."""
    if importlib.util.find_spec("numba") is None:
        return Sums()
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _CompiledSums(threads or here)


def _bits(values):
    return np.ascontiguousarray(values).view(np.uint16)


def _padded(values, copy=False):
    """Pads the last axis of a float32 array with +0 to a multiple of `_LANES`. If no padding is needed, it returns the array
    itself, or a copy if `copy`."""
    outputs = values.shape[-1]
    if outputs % _LANES == 0:
        return values.copy() if copy else values
    result = np.zeros((*values.shape[:-1], -outputs % _LANES + outputs), np.float32)
    result[..., :outputs] = values
    return result


class _CompiledSums(Sums):
    def __init__(self, threads):
        from . import compiled_kernels  # delay the import: numba is slow to import

        self._kernels, self._threads = compiled_kernels, threads
        self._pool = ThreadPoolExecutor(threads)

    def _shared(self, function, count, size):
        """Calls `function(first, last)` on ranges that cover `range(count)`, one range per thread. If `size`, the amount of work,
        is small, there is one range."""
        parts = 1 if size < _FEW else min(self._threads, count)
        edges = [count * part // parts for part in range(parts + 1)]
        self._all(function, list(zip(edges, edges[1:])))

    def _all(self, function, jobs):
        if len(jobs) == 1:
            function(*jobs[0])
        else:
            list(self._pool.map(lambda job: function(*job), jobs))

    def _exact(self, values, weights, start):
        """Returns True if bfloat16 operands and float32 initial sums permit the exact form of the loops."""
        low, high, _ = self._kernels.range_of_bits(_bits(values).reshape(-1))
        low_weights, high_weights, _ = self._kernels.range_of_bits(_bits(weights).reshape(-1))
        first = self._kernels.range_of_floats(np.ascontiguousarray(start).view(np.uint32).reshape(-1))
        # An exponent is its field - 127. The last place of a number is 7 (bfloat16) or 23 bits (binary32) below its exponent. All
        # numbers, and so all sums, are multiples of the least last place.
        small = low + low_weights - 254 - 14 < -126 or first - 127 - 23 < -126
        large = high + high_weights - 254 + 2 > 127
        return not (small or large)

    def _widened(self, values, size=None, top=0, left=0):
        """Widens bfloat16 values to float32 (batch, *size, channels). The values start at row `top` and column `left`, with +0
        around them. Default size: the size of the values."""
        batch, *have, channels = values.shape
        size = size or have
        make = np.empty if size == have else np.zeros
        result, bits = make((batch, *size, channels), np.float32), _bits(values)
        self._shared(lambda *part: self._kernels.widen(bits, result, top, left, *part), batch, result.size)
        return result

    def _operands(self, values, term, size):
        """Expresses a term as a convolution of stride 1. Returns `(float32 operands (batch, height, width, channels), kernel
        height, kernel width)`. Returns None if the term has groups."""
        if term.groups > 1:
            return None
        batch, height, width, channels = values.shape
        if size == term.dilation == (1, 1) and term.kernel == (height, width) and term.padding == (0, 0):
            return self._widened(values.reshape(batch, 1, 1, -1)), 1, 1
        if term.stride == term.dilation == (1, 1) and min(term.padding) >= 0 and term.kernel[1] * channels >= _RUN:
            need = [count + kernel - 1 for count, kernel in zip(size, term.kernel)]
            cut = values[:, : max(0, need[0] - term.padding[0]), : max(0, need[1] - term.padding[1])]
            return self._widened(cut, need, *term.padding), *term.kernel
        seen = patches(values, term, size).reshape(batch, *size, -1)
        return self._widened(seen), 1, 1

    def _meets_once(self, sums, values, term):
        """Returns True if the source has one position, and each position of the sums multiplies it by a different kernel
        position. The other products of a sum are products of padding, and change at most the sign of a zero."""
        if term.kernel == (1, 1) or (values.shape[1:3], term.groups, term.dilation) != ((1, 1), 1, (1, 1)):
            return False
        if sums.shape[1:3] != term.kernel or term.padding != tuple(size - 1 for size in term.kernel):
            return False
        *_, finite = self._kernels.range_of_bits(_bits(term.weights).reshape(-1))
        return finite

    def add_term(self, sums, values, term):
        if self._meets_once(sums, values, term):
            weights = term.weights[::-1, ::-1].transpose(2, 0, 1, 3).reshape(1, 1, values.shape[3], -1)
            if self._exact(values, weights, sums):
                flat = self.add_term(sums.reshape(len(sums), 1, 1, -1), values, Convolution(weights))
                return flat.reshape(sums.shape)
        found = self._operands(values, term, sums.shape[1:3])
        if found is None:
            by_channels = term.groups == values.shape[3] == sums.shape[3] and not is_broadcast(sums, values, term)
            return in_parts(self._add_by_channels, sums, values, term) if by_channels else super().add_term(sums, values, term)
        operands, down, across = found
        exact = self._exact(values, term.weights, sums)
        outputs = sums.shape[3]
        weights = _padded(self._widened(term.weights.reshape(1, down, -1, outputs))[0])
        result = _padded(sums, copy=True)
        if not exact:
            self._kernels.flush(result.reshape(-1))
        work = sums.size * weights[..., 0].size
        self._shared(lambda *part: self._kernels.convolve(operands, weights, result, exact, *part), len(sums), work)
        result = np.ascontiguousarray(result[..., :outputs])
        self._kernels.settle(result.reshape(-1))
        return result

    def _add_by_channels(self, sums, values, term):
        positions, channels = term.kernel[0] * term.kernel[1], sums.shape[3]
        seen = _bits(patches(values, term, sums.shape[1:3])).reshape(-1, positions, channels)
        weights, result = _bits(term.weights).reshape(positions, channels), sums.reshape(-1, channels).copy()
        self._shared(lambda *part: self._kernels.by_channels(seen, weights, result, *part), len(result), seen.size)
        self._kernels.settle(result.reshape(-1))
        return result.reshape(sums.shape)

    def weight_gradient(self, values, term, gradient, start=None):
        found = self._operands(values, term, gradient.shape[1:3])
        if found is None:
            return super().weight_gradient(values, term, gradient, start)
        operands, down, across = found
        exact = self._exact(values, gradient, np.zeros(1, np.float32) if start is None else start)
        outputs = gradient.shape[3]
        factors = _padded(self._widened(gradient))
        wide = factors.shape[3]
        if down == across == 1 and operands.shape[1:3] == gradient.shape[1:3]:  # store all positions as one long row
            operands, factors = operands.reshape(1, 1, -1, operands.shape[3]), factors.reshape(1, 1, -1, wide)
        rows = across * operands.shape[3]
        total = np.zeros((down, rows, wide), np.float32)
        if start is not None:
            total[..., :outputs] = start.reshape(down, rows, outputs)
            if not exact:
                self._kernels.flush(total.reshape(-1))
        step = max(1, min(_ROWS_BYTES // (4 * wide), -(-rows * down // self._threads)))
        jobs = [(ky, first, min(first + step, rows)) for ky in range(down) for first in range(0, rows, step)]
        self._all(lambda ky, *rows: self._kernels.correlate(operands, factors, total[ky], exact, ky, *rows), jobs)
        self._kernels.settle(total.reshape(-1))
        return np.ascontiguousarray(total[..., :outputs]).reshape(term.weights.shape)

    def bias_gradient(self, gradient):
        total = np.zeros(gradient.shape[3], np.float32)
        self._kernels.bias_gradient(_bits(gradient).reshape(-1, gradient.shape[3]), total)
        self._kernels.settle(total)
        return total

    def pool(self, sums, pool, rectified):
        result = np.empty((len(sums), *pool.size, sums.shape[3]), np.int32)
        index, bits = np.empty(result.shape, np.uint8), np.ascontiguousarray(sums).view(np.int32)
        self._shared(
            lambda *part: self._kernels.largest(bits, *pool.window, rectified, result, index, np.uint8(NOWHERE), *part),
            len(sums),
            sums.size,
        )
        return result.view(np.float32), index

    def spread(self, gradient, index, pool, size):
        result, bits = np.zeros((len(gradient), *size, gradient.shape[3]), np.uint16), _bits(gradient)
        self._shared(lambda *part: self._kernels.spread(bits, index, *pool.window, result, *part), len(gradient), result.size)
        return result.view(bfloat16)

    def kept(self, gradient, result):
        out, given, shown = np.empty(gradient.shape, np.uint16), _bits(gradient).reshape(-1), _bits(result).reshape(-1)
        self._shared(lambda *part: self._kernels.kept(given, shown, out.reshape(-1), *part), out.size, out.size)
        return out.view(bfloat16)

    def rounded(self, values, rectified=False):
        bits, out = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(-1), np.empty(values.shape, np.uint16)
        self._shared(lambda *part: self._kernels.rounded(bits, rectified, out.reshape(-1), *part), out.size, out.size)
        return out.view(bfloat16)

    def scaled(self, start, values, factor):
        out, given = np.empty(start.shape, np.float32), np.ascontiguousarray(start).reshape(-1)
        operands, factors = _bits(values).reshape(-1), np.atleast_1d(_bits(factor)).reshape(-1)
        self._shared(lambda *part: self._kernels.scaled(given, operands, factors, out.reshape(-1), *part), out.size, out.size)
        return out

    def added(self, one, two):
        out, first, second = np.empty(one.shape, np.float32), np.ascontiguousarray(one), np.ascontiguousarray(two)
        arguments = first.reshape(-1), second.reshape(-1), out.reshape(-1)
        self._shared(lambda *part: self._kernels.added(*arguments, *part), out.size, out.size)
        return out

    def looked_up(self, values, table):
        bits, out = np.ascontiguousarray(values).view(np.uint32).reshape(-1), np.empty(values.shape, np.uint16)
        settings = table.first, table.linear_low, table.linear_high, table.scale, table.base, table.binades
        arguments = bits, *settings, table.words, ALWAYS, NEVER, out.reshape(-1)
        self._shared(lambda *part: self._kernels.looked_up(*arguments, *part), out.size, out.size)
        return out.view(bfloat16)

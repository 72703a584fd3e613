"""Loops of :mod:`sim.golden.compiled_sums`, compiled by numba; each works on a range of samples or rows, so that threads
can share it.

Numbers are float32; those that were bfloat16 come as bits, or widened. A sum's terms are added one after the other; what is done
at once are sums that do not know of each other. Two forms of each loop over products:

- `exact`: no product overflows or is subnormal, no sum is subnormal. Then a product is exact, and it makes no difference whether
  product and addition are one operation of the processor or two;
- `checked`: two operations, and what is subnormal becomes a zero of its sign after each.
"""

import numba
import numpy as np

__all__ = [
    "EXACT",
    "CHECKED",
    "widen",
    "range_of_bits",
    "range_of_floats",
    "rounded",
    "settle",
    "largest",
    "spread",
    "kept",
    "scaled",
    "bias_gradient",
]

_TINY, _ZERO = np.float32(2.0**-126), np.float32(0)
_NAN = np.uint32(0x7FC00000).view(np.float32)

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
_fused = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


@numba.njit(error_model="numpy")
def _flushed(value):
    return value if not abs(value) < _TINY else value * _ZERO


@numba.njit(error_model="numpy")
def _widened(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@_compiled
def widen(bits, padded, top, left, first, last):
    """bfloat16 bits (batch, height, width, channels), flushed, into float32 (batch, more, more, channels) at (top, left)."""
    _, height, width, channels = bits.shape
    for b in range(first, last):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    padded[b, y + top, x + left, c] = _flushed(_widened(bits[b, y, x, c]))


@_compiled
def range_of_bits(bits):
    """(least, largest) exponent field of normal numbers among bfloat16 bits, flattened; (255, 0) if there are none."""
    least, most = 255, 0
    for i in range(bits.size):
        exponent = np.int32(bits[i] >> 7 & 255)
        least = min(least, exponent if exponent != 0 else 255)
        most = max(most, exponent if exponent != 255 else 0)
    return least, most


@_compiled
def range_of_floats(bits):
    """The least exponent field among binary32 bits, flattened, of numbers that are not 0; 255 if there are none."""
    least = 255
    for i in range(bits.size):
        exponent = np.int32(bits[i] >> 23 & 255)
        least = min(least, exponent if bits[i] & np.uint32(0x7FFFFFFF) != 0 else 255)
    return least


def _four(c, a, b, d, e, v, w, x, y):
    return (((c + a * v) + b * w) + d * x) + e * y


def _one(c, a, v):
    return c + a * v


def _four_checked(c, a, b, d, e, v, w, x, y):
    c = _flushed(c + _flushed(a * v))
    c = _flushed(c + _flushed(b * w))
    c = _flushed(c + _flushed(d * x))
    return _flushed(c + _flushed(e * y))


def _one_checked(c, a, v):
    return _flushed(c + _flushed(a * v))


def _loops(compiled, four, one):
    """`(convolve, correlate)` from what adds four products to a sum, and one."""
    four = numba.njit(error_model="numpy")(four)
    one = numba.njit(error_model="numpy")(one)

    @compiled
    def convolve(values, weights, sums, first, last):
        """Adds to sums (batch, height, width, outputs), of samples `first` to `last`, a convolution of stride 1 with weights
        (kernel height, kernel width * channels, outputs) over values (batch, at least height, at least width, channels)."""
        _, height, width, outputs = sums.shape
        channels, (down, run) = values.shape[3], weights.shape[:2]
        for b in range(first, last):
            for y in range(height):
                for x in range(width):
                    c = sums[b, y, x]
                    for ky in range(down):
                        row = values[b, y + ky].reshape(-1)[x * channels : x * channels + run]
                        k = 0
                        while k + 8 <= run:
                            v = weights[ky, k : k + 8]
                            x0, x1, x2, x3 = row[k], row[k + 1], row[k + 2], row[k + 3]
                            x4, x5, x6, x7 = row[k + 4], row[k + 5], row[k + 6], row[k + 7]
                            for j in range(outputs):
                                half = four(c[j], x0, x1, x2, x3, v[0, j], v[1, j], v[2, j], v[3, j])
                                c[j] = four(half, x4, x5, x6, x7, v[4, j], v[5, j], v[6, j], v[7, j])
                            k += 8
                        while k < run:
                            v = weights[ky, k : k + 1]
                            x0 = row[k]
                            for j in range(outputs):
                                c[j] = one(c[j], x0, v[0, j])
                            k += 1

    @compiled
    def correlate(values, gradient, total, ky, first, last):
        """Adds to rows `first` to `last` of total (kernel width * channels, outputs) the sum over (sample, y, x) of what a term
        of stride 1 reads there, at row `ky` of its kernel, times the gradient (batch, height, width, outputs)."""
        batch, height, width, outputs = gradient.shape
        channels = values.shape[3]
        for b in range(batch):
            for y in range(height):
                row = values[b, y + ky].reshape(-1)
                x = 0
                while x + 8 <= width:
                    d = gradient[b, y, x : x + 8]
                    for i in range(first, last):
                        c = total[i]
                        at = x * channels + i
                        x0, x1 = row[at], row[at + channels]
                        x2, x3 = row[at + 2 * channels], row[at + 3 * channels]
                        x4, x5 = row[at + 4 * channels], row[at + 5 * channels]
                        x6, x7 = row[at + 6 * channels], row[at + 7 * channels]
                        for j in range(outputs):
                            half = four(c[j], x0, x1, x2, x3, d[0, j], d[1, j], d[2, j], d[3, j])
                            c[j] = four(half, x4, x5, x6, x7, d[4, j], d[5, j], d[6, j], d[7, j])
                    x += 8
                while x < width:
                    d = gradient[b, y, x : x + 1]
                    for i in range(first, last):
                        c = total[i]
                        x0 = row[x * channels + i]
                        for j in range(outputs):
                            c[j] = one(c[j], x0, d[0, j])
                    x += 1

    return convolve, correlate


EXACT = _loops(_fused, _four, _one)
CHECKED = _loops(_compiled, _four_checked, _one_checked)


@_compiled
def settle(values):
    """Makes all NaNs of float32 values, flattened, the one that there is."""
    for i in range(values.size):
        values[i] = values[i] if values[i] == values[i] else _NAN


@_compiled
def rounded(bits, rectified, result, first, last):
    """Binary32 bits, flattened -> bfloat16 bits, through relu if `rectified`."""
    for i in range(first, last):
        value = bits[i]
        size = value & np.uint32(0x7FFFFFFF)
        value = value & np.uint32(0x80000000) if size < np.uint32(0x800000) else value
        up = (value + np.uint32(0x7FFF) + (value >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        up = np.uint32(0) if rectified and value >> np.uint32(31) != 0 else up
        result[i] = np.uint16(up) if size <= np.uint32(0x7F800000) else np.uint16(0x7FC0)


@_compiled
def largest(sums, down, across, rectified, result, index, nowhere, first, last):
    """Of binary32 bits int32 (batch, height, width, channels): the largest of each window, and the number of the first place with
    it; `nowhere` where it is not above 0, if `rectified`."""
    _, height, width, channels = result.shape
    for b in range(first, last):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    result[b, y, x, c] = np.int32(-0x80000000)
                    index[b, y, x, c] = 0
                for wy in range(down):
                    for wx in range(across):
                        number = np.uint8(wy * across + wx)
                        for c in range(channels):
                            bits = sums[b, y * down + wy, x * across + wx, c]
                            key = bits ^ np.int32(0x7FFFFFFF) if bits < 0 else bits
                            more = key > result[b, y, x, c]
                            index[b, y, x, c] = number if more else index[b, y, x, c]
                            result[b, y, x, c] = key if more else result[b, y, x, c]
                for c in range(channels):
                    key = result[b, y, x, c]
                    result[b, y, x, c] = key ^ np.int32(0x7FFFFFFF) if key < 0 else key
                    if rectified and (key <= 0 or key > np.int32(0x7F800000)):
                        index[b, y, x, c] = nowhere


@_compiled
def spread(gradient, index, down, across, result, first, last):
    """bfloat16 bits (batch, height, width, channels), each to its place in its window of `result`, which is 0."""
    _, height, width, channels = gradient.shape
    for b in range(first, last):
        for y in range(height):
            for x in range(width):
                for wy in range(down):
                    for wx in range(across):
                        number = np.uint8(wy * across + wx)
                        for c in range(channels):
                            here = index[b, y, x, c] == number
                            value = gradient[b, y, x, c]
                            result[b, y * down + wy, x * across + wx, c] = value if here else np.uint16(0)


@_compiled
def kept(gradient, result, out, first, last):
    """bfloat16 bits, flattened: the gradient where the result is above 0, else +0."""
    for i in range(first, last):
        above = np.uint16(0) < result[i] <= np.uint16(0x7F80)
        out[i] = gradient[i] if above else np.uint16(0)


@_compiled
def scaled(start, values, factors, out, first, last):
    """float32 `start + factor * values`, flattened; bfloat16 bits of values, and of one factor, or one for each."""
    alone = factors.size == 1
    for i in range(first, last):
        factor = _flushed(_widened(factors[0 if alone else i]))
        total = _flushed(_flushed(start[i]) + _flushed(_flushed(_widened(values[i])) * factor))
        out[i] = total if total == total else _NAN


@_compiled
def bias_gradient(rows, total):
    """Adds bfloat16 bits (rows, channels) up, into float32 (channels,)."""
    count, channels = rows.shape
    for i in range(count):
        for c in range(channels):
            total[c] = _flushed(total[c] + _flushed(_widened(rows[i, c])))

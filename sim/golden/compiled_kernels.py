"""Inner loops of :mod:`sim.golden.compiled_sums`, compiled by numba. Each loop processes a range of samples or rows, so that
several threads can share the work.

Numbers are float32. Operands in bfloat16 are passed as bit patterns, or already widened to float32. The products of one sum are
added in the defined order; only independent sums are computed in parallel. Loops over products have two forms:

- `exact`: for operands whose products never overflow, and whose products and sums are never subnormal. The products are then
exact, and a fused multiply-add gives the same bits as a multiplication and an addition.
- checked: a multiplication and an addition, each followed by flushing subnormal results to a zero of the same sign.
"""

import numba
import numpy as np

__all__ = [
    "convolve",
    "by_channels",
    "correlate",
    "widen",
    "range_of_bits",
    "range_of_floats",
    "rounded",
    "flush",
    "settle",
    "largest",
    "spread",
    "kept",
    "scaled",
    "looked_up",
    "bias_gradient",
]

_TINY, _ZERO = np.float32(2.0**-126), np.float32(0)
_NAN = np.uint32(0x7FC00000).view(np.float32)

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
_fused = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_inlined = numba.njit(error_model="numpy", inline="always")  # numba copies these functions into their callers


@numba.njit(error_model="numpy")
def _flushed(value):
    return value if not abs(value) < _TINY else value * _ZERO


@numba.njit(error_model="numpy")
def _widened(bits):
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@_compiled
def widen(bits, padded, top, left, first, last):
    """Widens bfloat16 bit patterns (batch, height, width, channels) to float32 and flushes subnormals. Writes samples `first` to
    `last` into `padded`, (batch, padded height, padded width, channels), from row `top` and column `left` on."""
    _, height, width, channels = bits.shape
    for b in range(first, last):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    padded[b, y + top, x + left, c] = _flushed(_widened(bits[b, y, x, c]))


@_compiled
def range_of_bits(bits):
    """Returns `(least, largest, finite)` of a flat array of bfloat16 bit patterns. `least` and `largest` are the exponent fields
    of its normal numbers, or 255 and 0 if it has none. `finite` is True if all numbers are finite."""
    least, most, top = 255, 0, 0
    for i in range(bits.size):
        exponent = np.int32(bits[i] >> 7 & 255)
        least = min(least, exponent if exponent != 0 else 255)
        most = max(most, exponent if exponent != 255 else 0)
        top = max(top, exponent)
    return least, most, top < 255


@_compiled
def range_of_floats(bits):
    """Returns the least exponent field of the nonzero numbers of a flat array of binary32 bit patterns, or 255 if there are
    none."""
    least = 255
    for i in range(bits.size):
        exponent = np.int32(bits[i] >> 23 & 255)
        least = min(least, exponent if bits[i] & np.uint32(0x7FFFFFFF) != 0 else 255)
    return least


@_inlined
def _eight(c, a, v):
    a0, a1, a2, a3, a4, a5, a6, a7 = a
    for j in range(c.size):
        half = (((c[j] + a0 * v[0, j]) + a1 * v[1, j]) + a2 * v[2, j]) + a3 * v[3, j]
        c[j] = (((half + a4 * v[4, j]) + a5 * v[5, j]) + a6 * v[6, j]) + a7 * v[7, j]


@_inlined
def _one(c, a, v):
    for j in range(c.size):
        c[j] = c[j] + a * v[j]


@_compiled
def _one_checked(c, a, v):
    for j in range(c.size):
        c[j] = _flushed(c[j] + _flushed(a * v[j]))


@_compiled
def _eight_checked(c, a, v):
    for k in range(8):
        _one_checked(c, a[k], v[k])


@_fused
def convolve(values, weights, sums, exact, first, last):
    """Adds a convolution of stride 1 to `sums`, (batch, height, width, outputs), for samples `first` to `last`. Weights have the
    shape (kernel height, kernel width * channels, outputs). Values have the shape (batch, at least height, at least width,
    channels)."""
    _, height, width, _ = sums.shape
    channels, (down, run) = values.shape[3], weights.shape[:2]
    for b in range(first, last):
        for y in range(height):
            for ky in range(down):
                row = values[b, y + ky].reshape(-1)
                k = 0
                while k + 8 <= run:
                    v = weights[ky, k : k + 8]
                    for x in range(width):
                        of = row[x * channels + k :]
                        a = of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]
                        if exact:
                            _eight(sums[b, y, x], a, v)
                        else:
                            _eight_checked(sums[b, y, x], a, v)
                    k += 8
                while k < run:
                    for x in range(width):
                        if exact:
                            _one(sums[b, y, x], row[x * channels + k], weights[ky, k])
                        else:
                            _one_checked(sums[b, y, x], row[x * channels + k], weights[ky, k])
                    k += 1


@_compiled
def by_channels(values, weights, sums, first, last):
    """Adds the products of a depthwise convolution to float32 `sums`, (positions, channels), for positions `first` to `last`.
    Products are added in the order of the kernel positions. Operands are bfloat16 bit patterns: values (positions, kernel
    positions, channels) and weights (kernel positions, channels)."""
    channels = sums.shape[1]
    factors = np.empty(weights.shape, np.float32)
    for k in range(weights.shape[0]):
        for c in range(channels):
            factors[k, c] = _flushed(_widened(weights[k, c]))
    for row in range(first, last):
        for c in range(channels):
            sums[row, c] = _flushed(sums[row, c])
        for k in range(weights.shape[0]):
            for c in range(channels):
                product = _flushed(_flushed(_widened(values[row, k, c])) * factors[k, c])
                sums[row, c] = _flushed(sums[row, c] + product)


@_fused
def correlate(values, gradient, total, exact, ky, first, last):
    """Adds the weight gradient of kernel row `ky`, for a convolution of stride 1, to rows `first` to `last` of `total`, (kernel
    width * channels, outputs). The gradient of a weight is a sum over samples and positions: the operand at the weight's kernel
    position, times `gradient` (batch, height, width, outputs)."""
    batch, height, width, _ = gradient.shape
    channels = values.shape[3]
    for b in range(batch):
        for y in range(height):
            row = values[b, y + ky].reshape(-1)
            x = 0
            while x + 8 <= width:
                v = gradient[b, y, x : x + 8]
                for i in range(first, last):
                    of = row[x * channels + i :: channels]
                    a = of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]
                    if exact:
                        _eight(total[i], a, v)
                    else:
                        _eight_checked(total[i], a, v)
                x += 8
            while x < width:
                for i in range(first, last):
                    if exact:
                        _one(total[i], row[x * channels + i], gradient[b, y, x])
                    else:
                        _one_checked(total[i], row[x * channels + i], gradient[b, y, x])
                x += 1


@_compiled
def flush(values):
    """Replaces every subnormal of a flat float32 array by a zero of the same sign."""
    for i in range(values.size):
        values[i] = _flushed(values[i])


@_compiled
def settle(values):
    """Replaces every NaN of a flat float32 array by the NaN 0x7FC00000."""
    for i in range(values.size):
        values[i] = values[i] if values[i] == values[i] else _NAN


@_compiled
def rounded(bits, rectified, result, first, last):
    """Rounds a flat array of binary32 bit patterns to bfloat16, after ReLU if `rectified`."""
    for i in range(first, last):
        value = bits[i]
        size = value & np.uint32(0x7FFFFFFF)
        value = value & np.uint32(0x80000000) if size < np.uint32(0x800000) else value
        up = (value + np.uint32(0x7FFF) + (value >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        up = np.uint32(0) if rectified and value >> np.uint32(31) != 0 else up
        result[i] = np.uint16(up) if size <= np.uint32(0x7F800000) else np.uint16(0x7FC0)


@_compiled
def largest(sums, down, across, rectified, result, index, nowhere, first, last):
    """Computes max pooling of binary32 bit patterns, int32 (batch, height, width, channels). Writes the largest number of each
    window, and the index of its first position in the window. If `rectified`, the index is `nowhere` for a window without a
    positive number."""
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
    """Writes each number of a gradient, bfloat16 bit patterns (batch, height, width, channels), to the position `index` of its
    window in `result`. `result` must be all 0 before."""
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
    """Copies a flat gradient of bfloat16 bit patterns where `result` is above 0, and writes +0 elsewhere."""
    for i in range(first, last):
        above = np.uint16(0) < result[i] <= np.uint16(0x7F80)
        out[i] = gradient[i] if above else np.uint16(0)


@_compiled
def scaled(start, values, factors, out, first, last):
    """Computes float32 `start + factor * values` over flat arrays. Values and factors are bfloat16 bit patterns, with one factor
    for all values or one factor for each."""
    alone = factors.size == 1
    for i in range(first, last):
        factor = _flushed(_widened(factors[0 if alone else i]))
        total = _flushed(_flushed(start[i]) + _flushed(_flushed(_widened(values[i])) * factor))
        out[i] = total if total == total else _NAN


@_compiled
def added(one, two, out, first, last):
    """Adds two flat float32 arrays."""
    for i in range(first, last):
        total = _flushed(_flushed(one[i]) + _flushed(two[i]))
        out[i] = total if total == total else _NAN


@_compiled
def looked_up(sums, start, linear_low, linear_high, scale, base, binades, words, always, never, out, first, last):
    """Applies a function table to a flat array of binary32 bit patterns, as defined by :func:`sim.golden.table_lookup.lookup`.
    The table covers `binades` binades. The first one has the biased exponent `start`, and is stored in binade `base` of the
    table memory."""
    half, inverse = scale & 1, scale >> 1
    for i in range(first, last):
        sign, exponent = np.int64(sums[i] >> 31), np.int64(sums[i] >> 23 & 255)
        fraction, between = np.int64(sums[i] >> 16 & 127), np.int64(sums[i] >> 4 & 4095)
        distance = exponent - start
        nearest, power = distance, 0
        if distance < 0:
            nearest, power = distance & half, linear_low >> sign & 1
        elif distance >= binades:
            nearest, power = binades - 1 - (~distance & half), linear_high >> sign & 1
        else:
            power = 2  # inside
        place = sign << 11 | (base + nearest & 15) << 7 | fraction
        value, slope = np.int64(words[2 * place]), np.int64(words[2 * place + 1])
        from_zero = power == 1 and exponent == 0
        shift = 0
        if from_zero or power == 1 and exponent == 255 and scale != 0:
            shift, between = always if from_zero == (inverse == 1) else never, 0
        elif power == 1:
            shift = distance - nearest >> half
            shift = -shift if inverse else shift
        gain = ((slope & 4095 ^ 2048) - 2048) * (between if power else 0) >> 9
        significand = ((value & 127 | 128) << 6) + (((slope >> 12 ^ 8) - 8) << 2) + gain
        up = (1 if significand >= 0x4000 else 0) - (1 if significand < 0x2000 else 0) - (1 if significand < 0x1000 else 0)
        pattern = ((value >> 7 & 255) + shift + up << 7) + ((significand << 1 - up) + 0x40 >> 7) - 0x80
        zero = value & 0x7F80 == 0 or significand < 0x800 or pattern < 0x80
        pattern = value & 0x8000 | (0 if zero else min(pattern, 0x7F80))
        is_nan = exponent == 255 and fraction != 0 or value & 0x7FFF > 0x7F80 and not from_zero
        out[i] = np.uint16(0x7FC0 if is_nan else pattern)


@_compiled
def bias_gradient(rows, total):
    """Adds bfloat16 bit patterns (rows, channels), row by row, to float32 sums (channels,)."""
    count, channels = rows.shape
    for i in range(count):
        for c in range(channels):
            total[c] = _flushed(total[c] + _flushed(_widened(rows[i, c])))

"""The definition of NORMALIZE: the core's results for a row of sums, bit for bit, in integer arithmetic.

`y = (x - mean) * factor / sqrt(sum of (x - mean)^2 + epsilon)`, without the mean unless `centred`. LayerNorm over N values is
this with a factor of sqrt(N) and N times its epsilon. With `root`, all results of a row are `factor / sqrt(...)`.

A result depends on the row alone: both sums are exact in fixed point, so the order of the elements, the lanes, the tiling and
the size of the array have no influence. Tests measure the error.
"""

import numpy as np

from amaranth_tpu.hw.spec.normalization import ROOTS, SEGMENT_BITS, SLOPES, SQUARE_SHIFT, upper_bits

from .arithmetic import NAN_BFLOAT16, add

__all__ = ["normalize", "aligned", "inverse_root", "exact", "error"]

_ROOTS, _SLOPES = (np.array(table, np.int64) for table in (ROOTS, SLOPES))


def aligned(bits):
    """Rounds rows of numbers, binary32 bit patterns (rows, N), to a common last place, halves away from 0. This place is half the
    last place of the row's largest exponent. Returns the signed multiples of the place, and the largest exponent fields."""
    bits = np.asarray(bits, np.uint32).astype(np.int64)
    exponent, significand = bits >> 23 & 0xFF, np.where(bits >> 23 & 0xFF, bits & 0x7FFFFF | 0x800000, 0)
    top = exponent.max(axis=1, keepdims=True)
    rounded = (significand << 2 >> np.minimum(top - exponent, 31)) + 1 >> 1
    return np.where(bits >> 31 == 1, -rounded, rounded), top


def _bit_length(values):
    """Returns the bit lengths of numbers below 2**62. The upper half of a number decides, unless it is 0."""
    upper = values >> 31
    return np.frexp(np.where(upper, upper, values).astype(np.float64))[1].astype(np.int64) + np.where(upper, 31, 0)


def inverse_root(squares, last_place, epsilon):
    """Computes 1 / sqrt(v) for `v = squares * 4**last_place + epsilon`. Returns `(root, halved)` with a result of
    `root * 2**-(18 + halved)`. The top bit of the 18-bit root is set. The root is 0 if v is 0.

    Both summands are truncated to 18 significant bits, and the smaller to the last place of the larger one, then v to 18 bits.

    Parameters
    ----------
    squares : int64 array
    last_place : int64 array
    epsilon : int
        Bits 7 to 30 of a binary32.
    """
    places = _bit_length(squares)
    first = np.where(places > 18, squares >> np.maximum(places - 18, 0), squares << np.maximum(18 - places, 0))
    second = (epsilon & 0xFFFF | 0x10000) << 1 if epsilon >> 16 else 0
    exponent, other = places - 1 + 2 * last_place, np.int64((epsilon >> 16) - 127)
    smaller = (second != 0) & ((squares == 0) | (other > exponent))
    distance = np.where((squares == 0) | (second == 0), 0, np.abs(exponent - other))
    shifted = np.where(smaller, first, second) >> np.minimum(distance, 31)
    total = np.where(smaller, second, first) + shifted
    carry = total >> 18
    exponent = np.where(smaller, other, exponent) + carry
    total >>= carry
    rest = 17 - SEGMENT_BITS
    segment = (exponent & 1) << SEGMENT_BITS | total >> rest & (1 << SEGMENT_BITS) - 1
    root = _ROOTS[segment] - (_SLOPES[segment] * (total & (1 << rest) - 1) >> rest)
    return np.where(total == 0, 0, root), exponent >> 1


def normalize(sums, *, centred, factor, epsilon, root=False):
    """Normalises rows of binary32 bit patterns, (rows, N). Returns bfloat16 bit patterns.

    Numbers are aligned, :func:`aligned`. The mean is rounded down to the common last place. A square is `k (k + 1)` for the
    magnitude of the difference, or its complement if it is negative, without its lowest 10 bits. The product of root and factor,
    and each difference, are truncated to 16 significant bits. Their product is rounded once, to nearest; ties are rounded away
    from 0, because the product is not exact. Results below the least normal number are zeros of the same sign; results that are
    too large are infinities. A row with a NaN or an infinity gives NaN in all elements. So does a row whose squares and epsilon
    are all 0.

    Parameters
    ----------
    centred : bool
        True to subtract the mean.
    factor, epsilon : int
        Bits 7 to 30 of positive binary32 numbers. An epsilon below the least normal number is 0.
    root : bool
        True: the product of root and factor replaces each result.
    """
    sums = np.asarray(add(sums, np.uint32(0x80000000)))  # flushes subnormals and leaves a single NaN
    x, top = aligned(sums)
    difference = x - (x.sum(axis=1, keepdims=True) // x.shape[1] if centred else 0)
    k = np.where(difference < 0, ~difference, difference) >> SQUARE_SHIFT
    squares = (k * (k + 1)).sum(axis=1, keepdims=True)
    inverse, halved = inverse_root(squares, top - 151 + SQUARE_SHIFT, epsilon)
    product = inverse * (factor & 0xFFFF | 0x10000)
    carry = product >> 34
    if root:
        difference = np.full_like(difference, 1 << 25)  # the number 1, by the last place of 1
    scale, exponent = product >> 18 + carry, (126 if root else top) + carry + (factor >> 16) - halved - 127
    magnitude = np.abs(difference)
    places = _bit_length(magnitude)
    product = (magnitude << 26 - places >> 10) * scale
    upper = product >> 31
    rounded = np.where(upper, product, product << 1) + 0x800000 >> 24  # an 8-bit significand, or 256
    result = (exponent - 26 + places + upper << 7) + rounded - 128
    result = np.where((result < 128) | (difference == 0), 0, np.minimum(result, 0x7F80)) | np.where(difference < 0, 0x8000, 0)
    return np.where((top == 255) | (inverse == 0), NAN_BFLOAT16, result).astype(np.uint16)


def exact(x, centred, epsilon):
    """Returns LayerNorm of rows in binary64; RMSNorm unless `centred`."""
    x = np.asarray(x, np.float64)
    x = x - x.mean(axis=1, keepdims=True) if centred else x
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + epsilon)


def error(x, centred, epsilon):
    """Returns the error of NORMALIZE for rows of float32: the root mean square, relative to that of the exact results."""
    width = x.shape[1]
    bits = normalize(x.view(np.uint32), centred=centred, factor=upper_bits(width**0.5), epsilon=upper_bits(width * epsilon))
    want = exact(x, centred, epsilon)
    return np.sqrt(np.square((bits.astype(np.uint32) << 16).view(np.float32) - want).mean() / np.square(want).mean())

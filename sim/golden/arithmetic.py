"""The definition of the arithmetic: results of every cell and every matrix multiplication, bit for bit.

Operands are bfloat16, sums are binary32, and rounding is to nearest, ties to even. Every subnormal operand or result is flushed
to a zero of the same sign; every NaN is 0x7FC00000. Functions on bit patterns (`multiply`, `add`, ...) take ints or arrays of
unsigned ints. Functions on values (`matmul`, `activate`, ...) take arrays of `ml_dtypes.bfloat16` and float32.
"""

import numpy as np
from ml_dtypes import bfloat16

__all__ = [
    "bfloat16",
    "NAN",
    "NAN_BFLOAT16",
    "multiply",
    "add",
    "multiply_accumulate",
    "without_minus_zero",
    "to_bfloat16",
    "relu",
    "ordered",
    "round_bfloat16",
    "activate",
    "matmul",
    "matmuls",
]

#: The only NaN, as binary32 and as bfloat16 bits.
NAN, NAN_BFLOAT16 = 0x7FC00000, 0x7FC0

_TINY = np.float32(2.0**-126)  # the least normal number
_BLOCK = 1 << 16  # numbers per block of `matmul`: 256 KiB of float32, which stay in the cache


def _quiet():
    """Returns a context manager that silences numpy's floating-point warnings. Overflow, underflow and invalid operations are
    part of the definition."""
    return np.errstate(all="ignore")


def _flush(values, scratch=None, mask=None):
    """Replaces every subnormal of a float32 array by a zero of the same sign, in place. NaNs stay NaNs."""
    scratch = np.abs(values, out=scratch)
    mask = np.greater_equal(scratch, _TINY, out=mask)
    return np.multiply(values, mask, out=values)


def _float32(bits):
    """Returns bit patterns as a new float32 array, with subnormals flushed to zero."""
    with _quiet():
        return _flush(np.array(bits, dtype=np.uint32, ndmin=1).view(np.float32)).reshape(np.shape(bits))


def _bits(values):
    """Returns the bit patterns of float32 values. Subnormals are flushed, and every NaN gets the same pattern. Overwrites
    `values`."""
    with _quiet():
        values = _flush(np.atleast_1d(values)).reshape(np.shape(values))
    bits = np.where(np.isnan(values), np.uint32(NAN), np.asarray(values).view(np.uint32))
    return bits if bits.ndim else bits[()]


def _widen(bits):
    """Converts bit patterns of bfloat16 numbers to bit patterns of the same binary32 numbers."""
    return np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)


def multiply(x, w):
    """Multiplies two bfloat16 numbers, given and returned as bit patterns. The binary32 product is exact unless it overflows or
    underflows."""
    with _quiet():
        return _bits(np.asarray(_float32(_widen(x)) * _float32(_widen(w))))


def add(a, b):
    """Adds two binary32 numbers, given and returned as bit patterns."""
    with _quiet():
        return _bits(np.asarray(_float32(a) + _float32(b)))


def multiply_accumulate(acc, x, w):
    """Computes `acc + x * w` as one cell of the array does: `acc` is binary32, `x` and `w` are bfloat16, all as bit patterns. The
    product is rounded and flushed before the addition."""
    return add(acc, multiply(x, w))


def without_minus_zero(bits):
    """Returns binary32 bit patterns with +0 for -0."""
    return np.where(bits == np.uint32(1 << 31), np.uint32(0), bits)


def to_bfloat16(value):
    """Rounds binary32 to bfloat16, given and returned as bit patterns. Overflow gives an infinity, as in IEEE 754.

    Subnormal operands are flushed to zero before rounding, so they never round up to the least normal number.
    """
    bits = _bits(np.array(value, np.uint32, ndmin=1).view(np.float32)).reshape(np.shape(value))
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)  # the NaN 0x7FC00000 becomes NAN_BFLOAT16
    return rounded.astype(np.uint16)


def relu(value):
    """Returns max(value, +0) of binary32 bit patterns. NaN stays NaN, -0 and negative numbers become +0, positive numbers are
    unchanged."""
    bits = np.asarray(value, dtype=np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(NAN), np.where(bits >> np.uint32(31), np.uint32(0), bits))[()]


def ordered(bits):
    """Maps binary32 bit patterns to int32 keys that compare like the numbers: -0 is below +0, and NaN is above all numbers. The
    function is its own inverse."""
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def round_bfloat16(values):
    """Rounds a float32 array to a bfloat16 array as defined by :func:`to_bfloat16`."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    return np.asarray(to_bfloat16(values.view(np.uint32))).view(bfloat16)


def activate(sums, function):
    """Applies the activation function named `function`, `"none"` or `"relu"`, to an array of float32 sums."""
    if function == "none":
        return sums
    if function == "relu":
        return np.asarray(relu(np.ascontiguousarray(sums).view(np.uint32))).view(np.float32)
    raise ValueError(f"activation function must be none or relu, not {function!r}")


def _least_bit(values, fraction_bits):
    """Returns an integer q such that every finite value is a multiple of 2**q. The values must not be subnormal."""
    magnitudes = np.abs(values)
    magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    return int(np.frexp(magnitudes.min())[1]) - 1 - fraction_bits if magnitudes.size else None


def _never_subnormal(x, w, start):
    """Returns True if no product and no sum can be subnormal: all products and all initial sums are multiples of one normal power
    of two."""
    bit_x, bit_w, bit_start = _least_bit(x, 7), _least_bit(w, 7), _least_bit(start, 23)
    least = [] if bit_start is None else [bit_start]
    if bit_x is not None and bit_w is not None:
        least.append(bit_x + bit_w)
    return min(least, default=0) >= -126


def matmul(x, w, bias=None):
    """Computes `bias + x @ w`. Products are added in the order k = 0, 1, 2 ..., as by the cells in a column of the array.

    Parameters
    ----------
    x : bfloat16 (batch, K)
    w : bfloat16 (K, N)
    bias : float32 (N,) or (batch, N), or None for +0
        Initial value of each sum. The form (batch, N) continues sums computed earlier.

    Returns
    -------
    float32 (batch, N)
    """
    x, w = np.asarray(x), np.asarray(w)
    if x.dtype != bfloat16 or w.dtype != bfloat16:
        raise TypeError(f"operands must be bfloat16, not {x.dtype} and {w.dtype}")
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise ValueError(f"shapes {x.shape} and {w.shape} do not multiply")
    batch, width = x.shape[0], w.shape[1]
    bias = np.zeros(width, np.float32) if bias is None else np.asarray(bias)
    if bias.dtype != np.float32 or bias.shape not in ((width,), (batch, width)):
        raise ValueError(f"bias must be float32 of shape ({width},) or ({batch}, {width}), not {bias.dtype} {bias.shape}")
    with _quiet():
        # Store one row of each operand per k. The longer side is the inner axis, where numpy is fast.
        inner = _flush(np.ascontiguousarray(x.T.astype(np.float32)))
        outer = _flush(np.ascontiguousarray(w.astype(np.float32)))
        start = _flush(np.array(np.broadcast_to(bias, (batch, width)).T, order="C"))
        flush = not _never_subnormal(inner, outer, bias)
        swap = width > batch
        if swap:
            inner, outer, start = outer, inner, np.ascontiguousarray(start.T)
        result = np.empty(start.shape, np.float32)
        step = max(16, _BLOCK // max(1, outer.shape[1]))
        for first in range(0, inner.shape[1], step):
            part = np.ascontiguousarray(inner[:, first : first + step])
            sums = start[:, first : first + step].copy()
            product, scratch, mask = np.empty_like(sums), np.empty_like(sums), np.empty(sums.shape, bool)
            for k in range(part.shape[0]):
                np.multiply(outer[k, :, None], part[k], out=product)
                if flush:
                    _flush(product, scratch, mask)
                np.add(sums, product, out=sums)
                if flush:
                    _flush(sums, scratch, mask)
            result[:, first : first + step] = sums
    result.view(np.uint32)[np.isnan(result)] = NAN
    return result if swap else np.ascontiguousarray(result.T)


def matmuls(x, w, start):
    """Computes many small matrix products with the same bits as :func:`matmul`. Each group has its own weights, with few inputs
    and outputs.

    Parameters
    ----------
    x : bfloat16 (batch, positions, groups, K)
    w : bfloat16 (positions, K, groups, N)
    start : float32 (batch, groups, N)
        Initial value of each sum. Products are added over positions, and over K at each position.
    """
    with _quiet():
        operands, weights = _flush(x.astype(np.float32)), _flush(w.astype(np.float32))
        sums = _flush(np.array(start))
        flush = not _never_subnormal(operands, weights, sums)
        columns = np.ascontiguousarray(operands.transpose(1, 3, 0, 2))[..., None]
        for position in range(weights.shape[0]):
            for k in range(weights.shape[1]):
                product = columns[position, k] * weights[position, k]
                np.add(sums, _flush(product) if flush else product, out=sums)
                if flush:
                    sums = _flush(sums)
    sums.view(np.uint32)[np.isnan(sums)] = NAN
    return sums

"""The definition of softmax: the core's results for a row of sums, bit for bit, in integer arithmetic.

A result depends on the row alone: the sum of the exponentials is exact in fixed point, so the order of the elements, the tiling
and the size of the array have no influence. The error is at most 0.6 units in the last place of bfloat16 (measured by a test),
for every row whose result is a normal number.
"""

import numpy as np

from amaranth_tpu.hw.spec.softmax import (
    DISTANCE_BITS,
    DISTANCE_FRACTION,
    EXPONENT_FRACTION,
    FINE_POWERS,
    FINEST_LOSSES,
    LOG2_E,
    LOG2_E_FRACTION,
    POWERS,
    RESULT_EXPONENT,
)

from .arithmetic import NAN_BFLOAT16, add

__all__ = ["softmax", "errors", "distances", "exponential", "reciprocal"]

_POWERS, _FINE_POWERS, _FINEST_LOSSES = (np.array(table, np.int64) for table in (POWERS, FINE_POWERS, FINEST_LOSSES))

#: Exponent field of the numbers whose last place is 2**-12, the last place of a distance.
_FIXED = 127 + 23 - DISTANCE_FRACTION


def distances(bits):
    """Computes the distances `max(x) - x` of rows, binary32 bit patterns (rows, N). Returns the distances as fixed-point int64,
    and the exponent fields of the maxima.

    Before the subtraction, the numbers are rounded to a common last place, halves away from 0. This place is 2**-12, the last
    place of a distance, or half the maximum's last place if that is larger. The differences are then exact. Distances saturate at
    19 bits. The rows must have no subnormals and only the NaN 0x7FC00000, which counts as larger than all numbers.
    """
    bits = np.asarray(bits, np.uint32).astype(np.int64)
    magnitude, negative = bits & 0x7FFFFFFF, bits >> 31 == 1
    largest = np.argmax(np.where(negative, ~magnitude, magnitude), axis=1)[:, None]
    exponent, significand = magnitude >> 23, magnitude & 0x7FFFFF | 0x800000
    top = np.take_along_axis(exponent, largest, 1)
    place = np.maximum(_FIXED, top - 1)
    # Three extra bits: one below, for rounding, and two above, for negative numbers of larger magnitude than the maximum.
    right = place + 2 - exponent
    rounded = (significand << 3 >> np.clip(right, 0, 31)) + 1 >> 1
    aligned = np.where(negative, -rounded, rounded)
    limit = (1 << DISTANCE_BITS) - 1
    difference = np.take_along_axis(aligned, largest, 1) - aligned
    difference = np.minimum(difference << np.minimum(place - _FIXED, 31), limit)
    return np.where(right < 0, limit, difference), top[:, 0]


def exponential(distance):
    """Computes exp(-d) of a fixed-point distance d. Returns `(power, halvings)`, which represent `power * 2**-(16 + halvings)`.
    The top bit of the 16-bit power is always set."""
    shift = DISTANCE_FRACTION + LOG2_E_FRACTION - EXPONENT_FRACTION
    t = np.asarray(distance, np.int64) * LOG2_E + (1 << shift - 1) >> shift
    fine = _FINE_POWERS[t >> 4 & 15] - _FINEST_LOSSES[t & 15]
    return _POWERS[t >> 8 & 15] * fine >> 16, t >> 12


def reciprocal(total):
    """Computes the reciprocal of an integer. Returns `(quotient, places)` with `quotient * 2**-(15 + places)` just below `1 /
    total`. The top bit of the 16-bit quotient is set. `places` is the number of bits of `total`, at least 16."""
    places = np.array([int(value).bit_length() for value in total])
    return np.array([((1 << 15 + int(count)) - 1) // int(value) for value, count in zip(total, places)]), places


def softmax(sums):
    """Computes exp(x - max) divided by the sum of these exponentials, for rows of binary32 bit patterns, (rows, N). Returns
    bfloat16 bit patterns.

    The result is rounded once, to nearest; ties are rounded up, because the product before rounding is not exact. Results below
    the least normal number are +0. An element of -infinity gives +0. A row with a NaN, or with an infinite maximum, gives NaN in
    all elements.
    """
    sums = np.asarray(add(sums, np.uint32(0x80000000)))  # flushes subnormals and leaves a single NaN
    distance, top = distances(sums)
    power, halvings = exponential(distance)
    terms = np.where(halvings < 32, power << 16 >> np.minimum(halvings, 31), 0)  # 32 fraction bits
    quotient, places = (values[:, None] for values in reciprocal(terms.sum(axis=1) >> 16))
    product = power * quotient
    upper = product >> 31
    product = np.where(upper, product, product << 1)
    rounded = product + 0x800000 >> 24  # an 8-bit significand, or 256
    result = (RESULT_EXPONENT - halvings - places + upper << 7) + rounded - 128
    result = np.where(result < 128, 0, result)
    return np.where(top[:, None] == 255, NAN_BFLOAT16, result).astype(np.uint16)


def errors(sums):
    """Returns the errors of :func:`softmax`, in units in the last place of bfloat16, for rows of finite sums: binary32 bit
    patterns (rows, N). Where the exact value is below the least normal number, the result 0 has the error 0."""
    x = np.asarray(sums, np.uint32).view(np.float32).astype(np.float64)
    true = np.exp(x - x.max(axis=1, keepdims=True))
    true /= true.sum(axis=1, keepdims=True)
    found = (softmax(sums).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    least = 2.0**-126
    _, exponent = np.frexp(np.maximum(true, least))
    units = np.abs(found - true) / 2.0 ** (exponent - 8)
    return np.where(true < least, np.where(found == 0, 0, units), units)

"""The definition of softmax: what the core gives for a row of sums, bit for bit, in integers.

The value of a result depends on the row alone: the sum of the exponentials is exact in fixed point, so neither the order of
the elements nor tiling nor the size of the array has any influence. Within 0.6 units in the last place of bfloat16
of the true value (a test measures it), for every row whose result is a normal number.
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

#: The exponent field of a number whose last place is that of a distance.
_FIXED = 127 + 23 - DISTANCE_FRACTION


def distances(bits):
    """`max(x) - x` for rows of binary32, bits (rows, N) -> fixed point, int64, and the exponent fields of the maxima.

    Exact differences of numbers that are rounded (halves away from 0) to a common last place: that of a distance, 2**-12, or
    half the maximum's if that is more. What does not fit in 19 bits is the largest that does. Bits are those of
    sums: no subnormals, one NaN, which counts as larger than all.
    """
    bits = np.asarray(bits, np.uint32).astype(np.int64)
    magnitude, negative = bits & 0x7FFFFFFF, bits >> 31 == 1
    largest = np.argmax(np.where(negative, ~magnitude, magnitude), axis=1)[:, None]
    exponent, significand = magnitude >> 23, magnitude & 0x7FFFFF | 0x800000
    top = np.take_along_axis(exponent, largest, 1)
    place = np.maximum(_FIXED, top - 1)
    # Three places are kept above the last one: two for numbers larger than the maximum, which are negative, and one to round.
    right = place + 2 - exponent
    rounded = (significand << 3 >> np.clip(right, 0, 31)) + 1 >> 1
    aligned = np.where(negative, -rounded, rounded)
    limit = (1 << DISTANCE_BITS) - 1
    difference = np.take_along_axis(aligned, largest, 1) - aligned
    difference = np.minimum(difference << np.minimum(place - _FIXED, 31), limit)
    return np.where(right < 0, limit, difference), top[:, 0]


def exponential(distance):
    """exp(-d) of a fixed-point distance as `(power, halvings)`: `power * 2**-(16 + halvings)`, the top bit of 16 always set."""
    shift = DISTANCE_FRACTION + LOG2_E_FRACTION - EXPONENT_FRACTION
    t = np.asarray(distance, np.int64) * LOG2_E + (1 << shift - 1) >> shift
    fine = _FINE_POWERS[t >> 4 & 15] - _FINEST_LOSSES[t & 15]
    return _POWERS[t >> 8 & 15] * fine >> 16, t >> 12


def reciprocal(total):
    """`(quotient, places)` with quotient * 2**-(15 + places) just below 1 / total: the top bit of 16 set; `places` are the
    bits of `total`, of which there have to be at least 16."""
    places = np.array([int(value).bit_length() for value in total])
    return np.array([((1 << 15 + int(count)) - 1) // int(value) for value, count in zip(total, places)]), places


def softmax(sums):
    """exp(x - max) / sum of them, for rows of sums: binary32 bits (rows, N) -> bfloat16 bits.

    Rounded once, to nearest (from a product that is not exact, so ties mean nothing and go up); what is below the least normal
    number then is +0. An element of -infinity gives +0. A row with a NaN, and one whose maximum is infinite, gives NaN
    throughout.
    """
    sums = np.asarray(add(sums, np.uint32(0x80000000)))  # without subnormals, and with only one NaN
    distance, top = distances(sums)
    power, halvings = exponential(distance)
    terms = np.where(halvings < 32, power << 16 >> np.minimum(halvings, 31), 0)  # 32 fraction bits
    quotient, places = (values[:, None] for values in reciprocal(terms.sum(axis=1) >> 16))
    product = power * quotient
    upper = product >> 31
    product = np.where(upper, product, product << 1)
    rounded = product + 0x800000 >> 24  # 8 bits, or 256
    result = (RESULT_EXPONENT - halvings - places + upper << 7) + rounded - 128
    result = np.where(result < 128, 0, result)
    return np.where(top[:, None] == 255, NAN_BFLOAT16, result).astype(np.uint16)


def errors(sums):
    """How far :func:`softmax` is from the true value, in units in the last place of bfloat16, for rows of finite sums: binary32
    bits (rows, N). 0 is right for what is less than the least normal number."""
    x = np.asarray(sums, np.uint32).view(np.float32).astype(np.float64)
    true = np.exp(x - x.max(axis=1, keepdims=True))
    true /= true.sum(axis=1, keepdims=True)
    found = (softmax(sums).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    least = 2.0**-126
    _, exponent = np.frexp(np.maximum(true, least))
    units = np.abs(found - true) / 2.0 ** (exponent - 8)
    return np.where(true < least, np.where(found == 0, 0, units), units)

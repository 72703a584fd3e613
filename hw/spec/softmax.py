"""The constants of softmax, for the hardware and the golden model: widths, and tables for the exponential of a distance."""

from math import e, log2

__all__ = [
    "DISTANCE_BITS",
    "DISTANCE_FRACTION",
    "EXPONENT_FRACTION",
    "LOG2_E",
    "LOG2_E_FRACTION",
    "POWERS",
    "FINE_POWERS",
    "FINEST_LOSSES",
    "RESULT_EXPONENT",
]

#: Bits of a distance `d`, including 12 fraction bits. For the largest distance, 128, exp(-d) is below the smallest normal number.
DISTANCE_BITS, DISTANCE_FRACTION = 19, 12
#: log2(e), with as many bits as an operand of a hard multiplier.
LOG2_E_FRACTION = 17
LOG2_E = round(log2(e) * 2**LOG2_E_FRACTION)
#: Fraction bits of `t = d * log2(e)`. Each table is addressed by four bits.
EXPONENT_FRACTION = 12


def _unsigned_fraction(value):
    return min(0xFFFF, round(0x10000 * value))


#: 2**-(i / 16), 16 fraction bits. Entry 0 is one unit below 1, to fit 16 bits.
POWERS = tuple(_unsigned_fraction(2 ** (-i / 16)) for i in range(16))
#: 2**-(i / 256), 16 fraction bits. The upper four bits are all ones.
FINE_POWERS = tuple(_unsigned_fraction(2 ** (-i / 256)) for i in range(16))
#: Decrease of a fine power by the factor 2**-(i / 4096), 16 fraction bits. It is computed for the middle fine power; the error
#: is at most one unit.
FINEST_LOSSES = tuple(round(0x10000 * 2 ** (-7.5 / 256) * (1 - 2 ** (-i / 4096))) for i in range(16))
#: A result is `power * quotient * 2**-(15 + places + halvings)`. For a product from 2**30 to 2**31, the biased exponent of the
#: result is this constant minus `places` minus `halvings`.
RESULT_EXPONENT = 127 + 30 - 15

"""The numbers of softmax: widths and tables of the exponential of a distance. Hardware and golden model take them here."""

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

#: Bits of a distance `d`, of which 12 are fraction. exp(-d) of the largest, 128, is less than the least normal number.
DISTANCE_BITS, DISTANCE_FRACTION = 19, 12
#: log2(e), with as many bits as a hard multiplier takes.
LOG2_E_FRACTION = 17
LOG2_E = round(log2(e) * 2**LOG2_E_FRACTION)
#: Bits of the fraction of `t = d * log2(e)`: four address each table.
EXPONENT_FRACTION = 12


def _unsigned_fraction(value):
    return min(0xFFFF, round(0x10000 * value))


#: 2**-(i / 16), 16 fraction bits; what should be 1 is a unit less.
POWERS = tuple(_unsigned_fraction(2 ** (-i / 16)) for i in range(16))
#: 2**-(i / 256), 16 fraction bits; the upper four are all ones.
FINE_POWERS = tuple(_unsigned_fraction(2 ** (-i / 256)) for i in range(16))
#: What 2**-(i / 4096) takes from a fine power, 16 fraction bits: taken from the middle one, which is wrong by a unit at most.
FINEST_LOSSES = tuple(round(0x10000 * 2 ** (-7.5 / 256) * (1 - 2 ** (-i / 4096))) for i in range(16))
#: A result is `power * quotient * 2**-(15 + places + halvings)`. Of a product from 2**30 to 2**31, its biased exponent is this,
#: less `places`, less `halvings`.
RESULT_EXPONENT = 127 + 30 - 15

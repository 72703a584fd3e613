"""The constants of NORMALIZE, for the hardware and the models: widths, and a table of 1 / sqrt(s)."""

from math import frexp, sqrt

__all__ = ["OFFSET", "SQUARE_SHIFT", "SEGMENT_BITS", "ROOTS", "SLOPES", "upper_bits"]

#: Added to an aligned number, whose magnitude is below it, so that sums have no sign.
OFFSET = 1 << 25
#: Low bits of a difference that do not count in its square.
SQUARE_SHIFT = 10
#: Segments of the table in an octave, as bits of an address.
SEGMENT_BITS = 5
_FRACTION = 18  # bits of a root


def _segments():
    """Yields (value at the start, decrease to the end) of 1 / sqrt(s) in each segment of [1, 4). The line is as far above the
    curve at its ends as below it in the middle."""
    for octave in (1, 2):
        for index in range(1 << SEGMENT_BITS):
            start, end = (1 / sqrt(octave * (1 + (index + step) / (1 << SEGMENT_BITS))) for step in (0, 1))
            middle = 1 / sqrt(octave * (1 + (index + 0.5) / (1 << SEGMENT_BITS)))
            first, last = (value - ((start + end) / 2 - middle) / 2 for value in (start, end))
            yield round(first * (1 << _FRACTION)), round((first - last) * (1 << _FRACTION))


#: 1 / sqrt(s) at the start of 32 segments of [1, 2), then of [2, 4), with 18 fraction bits, and its decrease in each segment.
ROOTS, SLOPES = (tuple(values) for values in zip(*_segments()))


def upper_bits(number):
    """Returns bits 7 to 30 of a positive binary32 number, the form of the fields `factor` and `epsilon`. Numbers out of range
    become the nearest number in range, and the fraction is rounded."""
    if not number:
        return 0
    fraction, exponent = frexp(number)
    bits = round(fraction * (1 << 17)) - (1 << 16) + (exponent + 126 << 16)
    return min(max(bits, 1 << 16), 0xFEFFFF)

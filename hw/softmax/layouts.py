"""Layouts and shapes that the stages of the softmax unit share."""

from amaranth import Cat, signed
from amaranth.lib import data

from ..arithmetic.float_formats import EXPONENT_BIAS
from ..spec.softmax import DISTANCE_FRACTION

__all__ = ["FACTOR", "FIXED", "GROUP", "MEAN", "QUOTIENT", "SCALE", "SUM_FRACTION", "SUM_UNUSED", "ordered_key"]

#: Exponent field of the numbers whose last place equals the last place of a distance.
FIXED = EXPONENT_BIAS + 23 - DISTANCE_FRACTION
#: Fraction bits of the sum of the exponentials, and the number of low bits that the division ignores.
SUM_FRACTION, SUM_UNUSED = 32, 16

#: The maximum of a row, aligned. `common` is the exponent field of the row's common last place, `base` the maximum in units of
#: that place, and `left` the left shift from there to the last place of a distance. `infinite` marks an infinity or NaN.
SCALE = data.StructLayout({"common": 8, "base": 28, "left": 5, "infinite": 1})

#: The reciprocal of a row's sum, see :class:`hw.arithmetic.reciprocal.Reciprocal`; `infinite` as in :data:`SCALE`.
QUOTIENT = data.StructLayout({"quotient": 16, "places": 7, "infinite": 1})

#: The factor of a row: a result of `quotient` and of a 16-bit significand has the exponent field `exponent`, or one more.
#: `infinite` marks a row whose results are NaN.
FACTOR = data.StructLayout({"quotient": 16, "exponent": signed(11), "infinite": 1})

#: The mean of a row of aligned numbers, each with an offset.
MEAN = data.StructLayout({"mean": 26})

#: Control bits of a group on its way through the lanes. `adds`: its terms are added to the sum. `keeps`: its powers are kept.
GROUP = data.StructLayout({"valid": 1, "first": 1, "last": 1, "adds": 1, "keeps": 1, "infinite": 1})


def ordered_key(bits):
    """Returns a binary32 as an unsigned key in the order of the numbers. Bit 31 of the key is 1 for a positive number."""
    return Cat(bits[:31] ^ bits[31].replicate(31), ~bits[31])

"""The number formats of the core: bfloat16 operands, binary32 products and sums."""

from amaranth import Cat
from amaranth.lib import data

__all__ = ["Bfloat16", "Binary32", "EXPONENT_BIAS", "EXPONENT_MAX", "QUIET_NAN", "without_minus_zero"]

#: Exponent bias of both formats.
EXPONENT_BIAS = 127
#: The exponent field of infinities and NaNs, in either format.
EXPONENT_MAX = 0xFF
#: The only NaN that the core produces, as binary32.
QUIET_NAN = 0x7FC00000


class Bfloat16(data.Struct):
    """The format bfloat16: the upper half of a binary32. It has 8 significant bits and the exponent range of binary32."""

    fraction: 7
    exponent: 8
    sign: 1


class Binary32(data.Struct):
    """IEEE-754 single precision: 24 significant bits."""

    fraction: 23
    exponent: 8
    sign: 1


def without_minus_zero(value):
    """Returns a flushed binary32 with +0 for -0."""
    return Cat(value[:31], value[31] & value[23:31].any())

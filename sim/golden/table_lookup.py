"""The function table as the core applies it.

The function of a binary32 with sign s, biased exponent E, the upper 7 bits of the fraction M and the next 12 as a number t in
[0, 1) comes from a table of 4,096 entries that holds 16 binades of either sign, from the exponent `first` on: from the entry
`s << 11 | (e - first) << 7 | M`, e being E brought into these binades. The first of its two words is a bfloat16, the function
without the lower bits. The second says how the function goes on, in units of that number's last place: its upper 4 bits,
signed, in sixteenths, are what rounding took from it; its lower 12, signed, in eighths, are what it gains up to the next
bfloat16, away from 0. By these the significand moves as far as t says, is normalised by one bit down or up to two bits up,
and rounded. What is less than a quarter of its binade's least number, or than the least normal number, gives 0.

Outside the 16 binades the function keeps the value of the nearest one, with t = 0, or goes on in proportion: where bit s of
`linear_low`, respectively `linear_high`, is 1, the exponent of the result is raised by E - e, and E = 0 gives 0. That is enough
for every function which is flat or a straight line through 0 at either end of either side.
"""

from dataclasses import dataclass

import numpy as np

from .arithmetic import NAN_BFLOAT16

__all__ = ["Table", "BINADES", "NEVER", "lookup", "moved", "rounded_entry"]

BINADES = 16
NEVER = -512  # raises every exponent out of range


@dataclass(frozen=True)
class Table:
    """What LOAD_TABLE puts into the core: `first`, `linear_low`, `linear_high`, and the `words`, uint16: of each entry
    the value, then the slope."""

    first: int
    linear_low: int
    linear_high: int
    words: np.ndarray

    def __iter__(self):
        return iter((self.first, self.linear_low, self.linear_high, self.words))


def lookup(sums, table):
    """bfloat16 bits of the table's function of binary32 bits, as the core has it. NaNs have a bit set in their upper half."""
    first, linear_low, linear_high, words = table
    sums, words = np.asarray(sums, np.uint32).astype(np.int64), np.asarray(words, np.uint16).astype(np.int64)
    sign, exponent, fraction, between = sums >> 31, sums >> 23 & 0xFF, sums >> 16 & 0x7F, sums >> 4 & 0xFFF
    within = np.clip(exponent, first, first + BINADES - 1)
    linear = np.where(exponent < within, linear_low, np.where(exponent > within, linear_high, 0)) >> sign & 1
    place = sign << 11 | within - first << 7 | fraction
    value, slope = words[2 * place], words[2 * place + 1]
    found = rounded_entry(
        value,
        moved(value, slope, np.where(linear | (exponent == within), between, 0)),
        np.where(linear, np.where(exponent == 0, NEVER, exponent - within), 0),
    )
    return np.where((exponent == 0xFF) & (fraction != 0), NAN_BFLOAT16, found).astype(np.uint16)


def moved(value, slope, between):
    """The significand of an entry, from its two words, moved by `between` / 4096; in 64ths of its last place, so that
    0x2000 is 1."""
    rest, gain = (slope >> 12 ^ 8) - 8, (slope & 0xFFF ^ 0x800) - 0x800
    return ((value & 0x7F | 0x80) << 6) + (rest << 2) + (gain * between >> 9)


def rounded_entry(value, significand, shift):
    """bfloat16 bits (int64): those of an entry's `value` with another significand, and an exponent raised by `shift`."""
    up = 1 * (significand >= 0x4000) - (significand < 0x2000) - (significand < 0x1000)
    pattern = ((value >> 7 & 0xFF) + shift + up << 7) + ((significand << 1 - up) + 0x40 >> 7) - 0x80
    zero = (value & 0x7F80 == 0) | (significand < 0x800) | (pattern < 0x80)
    return value & 0x8000 | np.where(zero, 0, np.minimum(pattern, 0x7F80))

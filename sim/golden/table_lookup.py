"""The definition of a function table, as the core evaluates it.

A table has 4,096 entries: 16 binades of either sign, starting at the exponent `first`. The input is a binary32 number with sign s
and biased exponent E. Let M be the upper 7 bits of its fraction, and t the next 12 bits, as a number in [0, 1). Let e be E
clamped to the 16 binades. The index of the entry is `s << 11 | (e - first) << 7 | M`.

An entry has two words. The first word is a bfloat16: the function value where the lower bits of the input are 0. The second word
corrects it for t, in units of the first word's last place. Its upper 4 bits, signed, in sixteenths, are the rounding error of the
first word. Its lower 12 bits, signed, in eighths, are the gain up to the next bfloat16, away from 0. The core adds the rounding
error and t times the gain to the significand. It normalises the sum, by one bit down or up to two bits up, and rounds it. Results
below a quarter of the binade's least number, or below the least normal number, are 0.

Outside the 16 binades the function is constant or linear. By default the result is the value of the nearest binade, with t = 0.
If bit s of `linear_low` (below) or `linear_high` (above) is 1, the exponent of the result is raised by E - e, and E = 0 gives 0.
This suffices for every function that is constant or a straight line through 0 at each end of each side.
"""

from dataclasses import dataclass

import numpy as np

from .arithmetic import NAN_BFLOAT16

__all__ = ["Table", "BINADES", "NEVER", "lookup", "moved", "rounded_entry"]

BINADES = 16
NEVER = -512  # an exponent raised by this gives 0


@dataclass(frozen=True)
class Table:
    """A function table: the operands of LOAD_TABLE. `first` is the first binade. `linear_low` and `linear_high` select the
    continuation per sign. `words` has two uint16 per entry: the value, then the slope."""

    first: int
    linear_low: int
    linear_high: int
    words: np.ndarray

    def __iter__(self):
        return iter((self.first, self.linear_low, self.linear_high, self.words))


def lookup(sums, table):
    """Evaluates a table for binary32 bit patterns, as the core does. Returns bfloat16 bit patterns. The upper 7 fraction bits of
    a NaN must not all be 0."""
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
    """Returns the significand of an entry's value after `between` / 4096 of its gain, in 64ths of its last place. 0x2000
    represents 1."""
    rest, gain = (slope >> 12 ^ 8) - 8, (slope & 0xFFF ^ 0x800) - 0x800
    return ((value & 0x7F | 0x80) << 6) + (rest << 2) + (gain * between >> 9)


def rounded_entry(value, significand, shift):
    """Returns bfloat16 bit patterns (int64): the sign and exponent of `value`, with the exponent raised by `shift`, and
    `significand` normalised and rounded."""
    up = 1 * (significand >= 0x4000) - (significand < 0x2000) - (significand < 0x1000)
    pattern = ((value >> 7 & 0xFF) + shift + up << 7) + ((significand << 1 - up) + 0x40 >> 7) - 0x80
    zero = (value & 0x7F80 == 0) | (significand < 0x800) | (pattern < 0x80)
    return value & 0x8000 | np.where(zero, 0, np.minimum(pattern, 0x7F80))

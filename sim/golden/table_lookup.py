"""The definition of a function table, as the core evaluates it.

A table has 4,096 entries: 16 binades of either sign. A function has up to 16 binades, starting at the exponent `first`. The input
is a binary32 number with sign s and biased exponent E. Let M be the upper 7 bits of its fraction, and t the next 12 bits, as a
number in [0, 1). Let e be E clamped to the binades. The index of the entry is `s << 11 | (e - first) << 7 | M`.

An entry has two words. The first word is a bfloat16: the function value where the lower bits of the input are 0. The second word
corrects it for t, in units of the first word's last place. Its upper 4 bits, signed, in sixteenths, are the rounding error of the
first word. Its lower 12 bits, signed, in eighths, are the gain up to the next bfloat16, away from 0. The core adds the rounding
error and t times the gain to the significand. It normalises the sum, by one bit down or up to two bits up, and rounds it. Results
below a quarter of the binade's least number, or below the least normal number, are 0.

Outside its binades the function is constant or a power of x. By default the result is the value of the nearest binade, with
t = 0. If bit s of `linear_low` (below) or `linear_high` (above) is 1, the exponent of the result is raised by E - e, by half of
it, or by the negative of either. `scale` selects the power. This suffices for every function that is constant or a multiple of
the power at each end of each side. A power of x has the same entries in all pairs of binades, so two binades suffice.

The function uses 16 - `spare` binades of each sign, starting at binade `base` of the memory, modulo 16. So several functions
with few binades can share the memory.
"""

from dataclasses import dataclass

import numpy as np

from .arithmetic import NAN_BFLOAT16

__all__ = ["Table", "BINADES", "NEVER", "ALWAYS", "lookup", "moved", "rounded_entry"]

BINADES = 16
NEVER = -512  # an exponent raised by this gives 0
ALWAYS = 255  # an exponent above 0 raised by this gives infinity


@dataclass(frozen=True)
class Table:
    """A function table: the operands of LOAD_TABLE. `first` is the first binade. `linear_low` and `linear_high` select the
    continuation per sign. `words` is the memory, with two uint16 per entry: the value, then the slope."""

    first: int
    linear_low: int
    linear_high: int
    words: np.ndarray
    scale: int = 0
    base: int = 0
    spare: int = 0

    @property
    def binades(self):
        """Number of binades of each sign that the function uses."""
        return BINADES - self.spare

    def packed(self):
        """Returns the words of the function's binades as bytes, for both signs: [sign, binade, entry, word]."""
        words = self.words.reshape(2, BINADES, -1)[:, (self.base + np.arange(self.binades)) % BINADES]
        return words.astype("<u2").tobytes()


def lookup(sums, table):
    """Evaluates a table for binary32 bit patterns, as the core does. Returns bfloat16 bit patterns. The upper 7 fraction bits of
    a NaN must not all be 0."""
    sums, words = np.asarray(sums, np.uint32).astype(np.int64), np.asarray(table.words, np.uint16).astype(np.int64)
    sign, exponent, fraction, between = sums >> 31, sums >> 23 & 0xFF, sums >> 16 & 0x7F, sums >> 4 & 0xFFF
    half, inverse = table.scale & 1, table.scale >> 1
    distance, last = exponent - table.first, table.binades - 1
    below, above = distance < 0, distance > last
    # The nearest binade. A root needs an even distance.
    nearest = np.where(below, distance & half, np.where(above, last - (~distance & half), distance))
    power = np.where(below, table.linear_low, np.where(above, table.linear_high, 0)) >> sign & 1
    place = sign << 11 | (table.base + nearest & 15) << 7 | fraction
    value, slope = words[2 * place], words[2 * place + 1]

    zero = power & (exponent == 0)
    end = zero | power & (exponent == 0xFF) & (table.scale > 0)
    shift = (distance - nearest >> half) * (-1 if inverse else 1)
    shift = np.where(end, np.where(zero == inverse, ALWAYS, NEVER), power * shift)
    found = rounded_entry(value, moved(value, slope, np.where(power & ~end | ~(below | above), between, 0)), shift)
    nan = (exponent == 0xFF) & (fraction != 0) | ~zero & (value & 0x7FFF > 0x7F80)
    return np.where(nan, NAN_BFLOAT16, found).astype(np.uint16)


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

"""Function tables with the least error, and measurement of a table's errors.

The format of tables is in :mod:`sim.golden.table_lookup`; the functions are in :mod:`sim.functions.functions`.
"""

import functools
from heapq import heapify, heappop, heappush

import numpy as np

from amaranth_tpu.hw.spec.isa import TABLE_WORDS

from ..functions import derivatives, functions
from . import table_cache, table_lookup
from .arithmetic import activate
from .table_lookup import BINADES, NEVER, Table, lookup, moved, rounded_entry

__all__ = ["table_of", "apply", "errors", "is_steady"]

_LARGEST = 2.0**128 - 2.0**119  # magnitudes from here on round to infinity
_LEAST = 2.0**-126  # results of smaller magnitude are 0
_NO_NUMBER = 0xFFC0  # entries of results that are NaN. The sign is the sign of the root of -0
_SETTINGS = ("first", "linear_low", "linear_high", "scale", "spare")  # of tables in the cache
_MODULES = (__name__, table_lookup.__name__, functions.__name__, derivatives.__name__)  # modules that determine the tables


def apply(function, sums):
    """Applies an activation function to float32 sums as the core does. Results of `none` and `relu` are still binary32; results
    of functions by table are already rounded to bfloat16."""
    if not function.is_table:
        return activate(sums, function.name)
    bits = np.ascontiguousarray(sums, np.float32).view(np.uint32)
    return (lookup(bits, table_of(function)).astype(np.uint32) << 16).view(np.float32)


def _numbers(bits):
    """Converts bfloat16 bit patterns to float64."""
    with np.errstate(invalid="ignore"):  # NaNs
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)


def _rounded(values):
    """Rounds float64 to bfloat16 bit patterns, to nearest, ties to even. Results below the least normal number become 0."""
    fraction, exponent = np.frexp(values)
    with np.errstate(over="ignore"):
        values = np.where(np.isfinite(values), np.ldexp(np.rint(fraction * 256), exponent - 8), values)
        values = np.where(np.abs(values) < _LEAST, np.copysign(0, values), values)
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.int64)


def _ulps(found, exact):
    """Returns the distance of `found` from `exact`, in units in the last place of bfloat16. The distance is infinite if `exact`
    overflows bfloat16 and `found` is not that infinity. It is 0 if `exact` is below the least normal number and `found` is 0."""
    size = np.abs(exact)
    with np.errstate(all="ignore"):
        unit = np.ldexp(1.0, np.where(size < _LEAST, -126, np.frexp(size)[1] - 1) - 7)
        distance = np.abs(found - exact) / unit
        distance = np.where((size < _LEAST) & (found == 0), 0, distance)
        return np.where(size >= _LARGEST, np.where(found == np.copysign(np.inf, exact), 0, np.inf), distance)


def _inputs():
    """Returns all bfloat16 numbers, [sign, exponent, fraction], as float64 with subnormals replaced by 0, and a mask that is
    False for NaNs."""
    bits = np.arange(1 << 16).reshape(2, 256, 128)
    return _numbers(np.where(bits & 0x7F80, bits, bits & 0x8000)), ~((bits & 0x7F80 == 0x7F80) & (bits & 0x7F != 0))


def errors(function, sums, found):
    """Returns the errors of results, in units in the last place of bfloat16. `sums` are the inputs, binary32 bit patterns without
    subnormals. `found` are the results, bfloat16 bit patterns. The error at a NaN is 0. It is infinite where only the result or
    only the exact value is NaN."""
    with np.errstate(invalid="ignore"):
        x = np.asarray(sums, np.uint32).view(np.float32).astype(float)
    number, found = ~np.isnan(x), _numbers(found)
    exact = function.exact(np.where(number, x, 0))
    distance = np.where(
        np.isnan(exact) | np.isnan(found), np.where(np.isnan(exact) & np.isnan(found), 0, np.inf), _ulps(found, exact)
    )
    return np.where(number, distance, 0)


def is_steady(function, sums):
    """Returns True for each input at which units in the last place are a useful measure of the function's error. `sums` are
    binary32 bit patterns. The measure is not useful if the function changes its sign, or is below 2^-100 or above 2^127, at
    one of the two bfloat16 numbers around the input."""
    low = np.asarray(sums, np.uint32) >> np.uint32(16)
    with np.errstate(invalid="ignore"):
        ends = np.stack([function.exact(_numbers(bits)) for bits in (low, low + np.uint32(1))])
    return ((2.0**-100 <= np.abs(ends)) & (np.abs(ends) <= 2.0**127)).all(axis=0) & (np.sign(ends[0]) == np.sign(ends[1]))


@functools.lru_cache(maxsize=1024)
def table_of(function):
    """Returns the :class:`.Table` that represents a :class:`sim.functions.functions.Function` with the least error over all
    inputs. Tables are cached on disk.

    Raises
    ------
    ValueError
        If no choice of 16 binades keeps the error at every bfloat16 within one unit in the last place, or if the function jumps
        between two adjacent bfloat16.

    Notes
    -----
    A function with a `scale` is a power of x, or NaN for negative x. Its table needs one binade, or two for a root, and as many
    again if the function is 1 below 1. Other tables have the binades in which the function differs from its continuation.
    """
    kept = table_cache.load(function.key, _MODULES, len(_SETTINGS) + TABLE_WORDS)
    if kept is None:
        table = _computed(function)
        table_cache.store(function.key, _MODULES, np.concatenate([[getattr(table, name) for name in _SETTINGS], table.words]))
        return table
    settings, words = dict(zip(_SETTINGS, kept.tolist())), kept[len(_SETTINGS) :]
    words.flags.writeable = False
    return Table(**settings, words=words)


def _table(values, slopes, **settings):
    """Returns the Table of entries with these values and slopes, [sign, binade, fraction]. The table starts at binade 0 of the
    memory."""
    words = np.zeros((2, BINADES, values.shape[2], 2), np.uint16)
    words[:, : values.shape[1]] = np.stack([values, slopes], axis=-1).astype(np.uint16)
    words = words.reshape(TABLE_WORDS)
    words.flags.writeable = False
    return Table(**settings, words=words, spare=BINADES - values.shape[1])


class _Entries:
    """The search for the entries in the first and the last binade of a function's table. These entries also represent all binades
    outside the table, so they are chosen from several candidates."""

    def __init__(self, function):
        x, self._number = _inputs()
        self._exact = function.exact(np.where(self._number, x, 0))
        self.rounded = _rounded(self._exact)

    def serve(self, sign, edges, reach, linear, fractions):
        """Chooses the entries of the end binades `edges`, which also represent the binades at the distances `reach` from them.

        Returns `(largest error per edge, linear, entries [edge, fraction])`. `linear` selects the continuation beyond an edge: 0
        constant, 1 linear. An entry is the rounded function value, or an adjacent bfloat16 if its largest error is smaller.
        """
        around = self.rounded[sign, edges[:, None], fractions]
        candidates = np.clip(around[:, None] + np.array([0, -1, 1])[:, None], 0, 0xFFFF)  # [edge, candidate, fraction]
        places = np.clip(edges[:, None] + reach, 0, 255)
        shift = np.where(places == 0, NEVER, places - edges[:, None]) * (linear & (places != edges[:, None]))
        candidate, place = candidates[:, :, None], places[..., None]
        found = rounded_entry(candidate, moved(candidate, 0, 0), shift[:, None, :, None])
        distance = _ulps(_numbers(found), self._exact[sign, place, fractions][:, None])
        distance = np.where(self._number[sign, place, fractions][:, None], distance, 0).max(axis=2)
        best = np.nan_to_num(distance, nan=np.inf).argmin(axis=1)[:, None]
        error = np.take_along_axis(distance, best, 1)[:, 0].max(axis=1)
        return error, linear, np.take_along_axis(candidates, best, 1)[:, 0]

    def errors(self, edges, reach, fractions):
        """Returns the largest error of each end binade in `edges`, over both signs. For each sign, the better continuation is
        used: constant or linear."""
        both = ([self.serve(sign, edges, reach, linear, fractions)[0] for linear in (0, 1)] for sign in (0, 1))
        return np.max([np.minimum(*one) for one in both], axis=0)

    def error(self, first, fractions):
        return float(max(self.errors(*place, fractions)[0] for place in _ends(first)))


def _ends(first):
    """Returns the first and the last binade of a table, each with the distances to the binades that it represents."""
    last = first + BINADES - 1
    return (np.array([first]), -np.arange(first + 1)), (np.array([last]), np.arange(256 - last))


def _best(entries):
    """Finds the table with the least error. Returns its error and its first binade.

    The search is a branch and bound. A few binades at a few fractions give a lower bound of the error of every table. All binades
    give a better bound, computed only for the tables with the least bounds. Then all fractions are computed, in order of the
    bounds, until no other table can be better.
    """
    few, firsts = np.array([0, 1, 64, 127]), np.arange(256 - BINADES + 1)
    near = np.array([0, 1, 2, 8, 255])
    rough = np.maximum(entries.errors(firsts, -near, few), entries.errors(firsts + BINADES - 1, near, few))
    bounds = [(bound, False, first) for first, bound in enumerate(rough.tolist())]
    heapify(bounds)
    least, chosen = np.inf, None
    while bounds and bounds[0][0] < least:
        _, is_close, first = heappop(bounds)
        if not is_close:
            heappush(bounds, (entries.error(first, few), True, first))
        elif (found := entries.error(first, np.arange(128))) < least:
            least, chosen = found, first
    return least, chosen


def _power(function):
    each, exponents = 1 + (function.scale & 1), np.arange(1, 254)
    sizes = np.abs(np.log2(np.abs(function.exact(np.ldexp(1.0, exponents - 127)))))
    is_capped = not sizes[:2].any()  # then it is 1 below 1, also for negative x
    first = 127 - each if is_capped else int(exponents[sizes.argmin()])  # where results are about 1
    count, linear = each << is_capped, {"linear_low": 0b11 * (not is_capped), "linear_high": 0b01 if is_capped else 0b11}
    x = np.ldexp(1 + np.arange(128) / 128, np.arange(first - 127, first - 127 + count)[:, None])
    exact = function.exact(np.stack([x, -x]))
    values = np.where(np.isnan(exact), _NO_NUMBER, _rounded(exact))
    slopes = _slopes(function, first, (0, 0), (0, 0), values)
    slopes[np.isnan(exact)] = 0
    return _table(values, slopes, first=first, scale=function.scale, **linear)


def _computed(function):
    if function.scale:
        return _power(function)
    entries = _Entries(function)
    least, first = _best(entries)
    if least > 1:
        raise ValueError(
            f"{function} does not fit the function table: with the best 16 binades the error is {least:.4g} units "
            "in the last place"
        )
    low, high = (
        [
            min((entries.serve(sign, *place, linear, np.arange(128)) for linear in (0, 1)), key=lambda one: one[0][0])
            for sign in (0, 1)
        ]
        for place in _ends(first)
    )
    values = entries.rounded[:, first : first + BINADES].copy()
    values[:, 0], values[:, -1] = [one[2][0] for one in low], [one[2][0] for one in high]
    linear = [[one[1] for one in end] for end in (low, high)]
    slopes = _slopes(function, first, *linear, values)
    skipped, end = _needed(values, slopes, *linear)
    low, high = (positive | negative << 1 for positive, negative in linear)
    table = _table(values[:, skipped:end], slopes[:, skipped:end], first=first + skipped, linear_low=low, linear_high=high)
    _check_between(function, table)
    return table


def _needed(values, slopes, linear_low, linear_high):
    """Returns the range of binades that a table needs: (first, end). Without the other binades the function is the same."""
    first, end = 0, values.shape[1]
    while end - first > 1 and _continues(values, slopes, end - 1, end - 2, linear_high):
        end -= 1
    while end - first > 1 and _continues(values, slopes, first, first + 1, linear_low):
        first += 1
    return first, end


def _continues(values, slopes, outer, inner, linear):
    """Checks whether the entries of binade `outer` equal the continuation of binade `inner`. `linear` is indexed by sign."""
    for sign in (0, 1):
        (value, beyond), (slope, other) = values[sign, [inner, outer]], slopes[sign, [inner, outer]]
        if linear[sign]:
            exponent = value >> 7 & 0xFF
            if (beyond - value != outer - inner << 7).any() or (slope != other).any() or not 0 < exponent.min():
                return False
        elif (beyond != value).any() or (other >> 12 != slope >> 12).any() or (other & 0xFFF).any():
            return False
    return True


def _check_between(function, table):
    """Raises ValueError if the function changes too much between two adjacent bfloat16. Linear interpolation between them would
    not follow it."""
    ends = np.array([[0], [0x8000]]) + np.arange(0x80, 0x7F80)
    sums = ((ends << 16)[..., None] + np.array([0x4000, 0x8000, 0xC000])).astype(np.uint32)
    with np.errstate(invalid="ignore"):  # both may be infinite; such points are not checked
        error = np.abs(_numbers(lookup(sums, table)) - function.exact(sums.view(np.float32).astype(float))).max(axis=-1)[:, 1:-2]
    size = np.abs(function.exact(_numbers(ends)))
    around = np.lib.stride_tricks.sliding_window_view(size, 4, axis=1).max(axis=-1)
    steep = np.argwhere((error > around / 2) & (around > 2.0**-100) & (around < _LARGEST))
    if steep.size:
        raise ValueError(
            f"{function} does not fit the function table: next to {_numbers(ends)[tuple(steep[0] + [0, 1])]:g} it "
            "changes too much between two bfloat16"
        )


def _slopes(function, first, linear_low, linear_high, values):
    """Returns the second words of table entries, [sign, binade, fraction], for the given first words, `values`. `linear_low` and
    `linear_high` are indexed by sign.

    The word holds the rounding error of the value, clipped so that the value remains the rounded one. It also holds the gain. The
    candidates for the gain are exact at one of 17 positions up to the next bfloat16; the one with the least error over these
    positions is chosen.
    """
    sign, exponent, fraction = (index[..., None] for index in np.ogrid[:2, first : first + values.shape[1], :128])
    between = np.append(np.arange(16) << 8, 0xFFF)
    x = np.ldexp(1 + (fraction + between / 4096) / 128, exponent - 127)
    x = np.where(exponent == 0, 0, np.where(exponent == 0xFF, np.inf, x))
    x = np.where(sign, -x, x)
    exact = function.exact(x)
    exact = np.where(np.isnan(exact), 0, exact)
    # A linear continuation also represents other binades: use the mean of the nearest binade and one where the ratio is constant.
    for edge, linear, far in ((0, linear_low, -8), (BINADES - 1, linear_high, 8)):
        for side in np.flatnonzero(linear):
            exact[side, edge] = (exact[side, edge] + np.ldexp(function.exact(np.ldexp(x[side, edge], far)), -far)) / 2
    values = values[..., None]
    last_place = np.ldexp(np.where(values >> 15, -1.0, 1.0), (values >> 7 & 0xFF) - 134)

    with np.errstate(over="ignore"):
        places = exact / last_place
    rest = np.rint(16 * (places[..., :1] - (values & 0x7F | 0x80)))
    # Below a power of two the last place is half as large.
    rest = np.clip(rest, np.where(values & 0x7F, -8, -4), 7).astype(np.int64) << 12 & 0xF000

    def error(words):
        significand = moved(values, words, between)
        found = significand / 64 * last_place
        found = np.where((significand < 0x800) | (np.abs(found) < _LEAST), 0, found)
        found = np.where(np.abs(found) >= _LARGEST, np.copysign(np.inf, found), found)
        distance = np.minimum(_ulps(found, exact), 256)  # near a zero of the function, the error in units is unbounded
        return distance.max(axis=-1, keepdims=True) + distance.mean(axis=-1, keepdims=True) / 1024

    start = moved(values, rest, 0) / 64
    best, least = rest, error(rest)
    for index in range(1, len(between)):
        gain = np.rint(8 * (places[..., index : index + 1] - start) / (between[index] / 4096))
        words = rest | np.clip(gain, -0x800, 0x7FF).astype(np.int64) & 0xFFF
        distance = error(words)
        best, least = np.where(distance < least, words, best), np.minimum(distance, least)
    return best[..., 0]

"""Interval bounds of a formula's value and of its slope, over ranges of the variable.

The bounds of the value include the rounding errors of a computation in binary32, one operation after the other. At a single
number, their width therefore bounds the error of such a computation. The slope is the slope of the exact formula, and unbounded
where the formula may jump. All bounds are binary64, computed for arrays of ranges at once.

NaN at both ends of a range means that the value is certainly NaN. If a value may be NaN or a number, the bounds cover the
numbers.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from .domains import Domain, domain
from .formulas import VARIABLE

__all__ = ["Range", "evaluate", "LARGEST"]

#: The largest binary32 number. From half a unit in the last place above it, results round to infinity.
LARGEST = 2.0**128 - 2.0**104
_OVERFLOW = 2.0**128 - 2.0**103

_LEAST, _TINY = 2.0**-126, 2.0**-149  # results below the first have a rounding error of up to the second
_ROUNDED = 2.0**-24  # relative error of a correctly rounded operation
_SHORT = 16  # constants with at most this number of bits are exact
_NOTHING = 2.0**-140
_NEARLY = 2.0**-21  # relative error of other functions, for results that are not binary32 numbers (erf(9) is exactly 1)

_each = np.vectorize(math.erf, otypes=[float])
_rest = np.vectorize(math.erfc, otypes=[float])


@dataclass(frozen=True, eq=False)
class Range:
    """Bounds of a formula, as float64 arrays: bounds of the value, bounds of the slope (or None), and its
    :class:`sim.functions.domains.Domain`."""

    low: np.ndarray
    high: np.ndarray
    slope: tuple[np.ndarray, np.ndarray] | None = None
    domain: Domain = Domain()


def evaluate(formula, low, high, *, slopes=False, overflow=False, known=None):
    """Computes the :class:`Range` of a formula for each range [low, high] of the variable.

    Parameters
    ----------
    low, high : float64 arrays
    slopes : bool
        Compute the bounds of slopes too.
    overflow : bool
        True: results beyond binary32 become infinite. False: results stay in binary64, whose exponents have three more bits.
    known : dict or None
        Ranges computed before for the same variable, by formula. The ranges of this formula's subexpressions are added.
    """
    with np.errstate(all="ignore"):
        slope = (np.ones(np.shape(low)), np.ones(np.shape(low))) if slopes else None
        known = {} if known is None else known
        variable = Range(low, high, slope)
        known.setdefault(VARIABLE, replace(variable, domain=domain(VARIABLE, variable, [])))
        return _value(formula, known, overflow)


def _value(formula, known, overflow):
    if formula not in known:
        arguments = [_value(argument, known, overflow) for argument in formula.arguments]
        result, error, *rest = _OPERATIONS[formula.operation](formula, known[VARIABLE], *arguments)
        gone = np.any([np.isnan(one.low) & np.isnan(one.high) for one in arguments], axis=0) if arguments else False
        if formula.operation not in ("where", "greater", "at_least", "not") and np.any(gone):
            result = _nowhere(result, gone)
        result = _widened(result, error, rest, overflow)
        known[formula] = replace(result, domain=domain(formula, result, arguments))
    return known[formula]


def _nowhere(one, gone):
    slope = one.slope and tuple(np.where(gone, 0, end) for end in one.slope)
    return Range(np.where(gone, np.nan, one.low), np.where(gone, np.nan, one.high), slope)


def _widened(one, error, rest, overflow):
    """Widens an operation's result by rounding errors. The sign is preserved, and binary32 numbers are not rounded."""
    low, high = one.low, one.high
    if error:
        low, high = -_above(-low, error), _above(high, error)
    if rest:
        low, high = np.minimum(low, one.low - rest[0]), np.maximum(high, one.high + rest[1])
    if overflow:
        low, high = -_overflown(-low), _overflown(high)
    return Range(low, high, one.slope)


def _above(bound, error):
    """Raises an upper bound by the rounding error. For a lower bound, the caller inverts its sign before and after."""
    high = bound * (2.0**29 + 1)
    short = high - (high - bound)  # rounded to 24 bits
    short = np.where(np.isfinite(short), short, bound)
    if error > _ROUNDED:
        away = np.where(short == bound, bound, bound * np.where(bound > 0, 1 + error, 1 - error))
    else:
        away = np.maximum(bound, short)
    away = away + np.where((np.abs(bound) < _LEAST) & (bound != 0), _TINY, 0)
    return np.where(bound < 0, np.minimum(away, 0), away)


def _overflown(bound):
    """Applies overflow to an upper bound: values beyond binary32 become infinite. For a lower bound, the caller inverts its sign
    before and after."""
    return np.where(bound > LARGEST, np.inf, np.where(bound <= -_OVERFLOW, -np.inf, bound))


# Arithmetic on bounds


def _product(one, two):
    """Returns the bounds of a product. 0 times an infinite bound counts as 0."""
    corners = [np.where((a == 0) | (b == 0), 0.0, a * b) for a in one for b in two]
    return np.fmin.reduce(corners), np.fmax.reduce(corners)


def _sum(one, two):
    low, high = one[0] + two[0], one[1] + two[1]
    unsure = np.isnan(low) | np.isnan(high)
    return np.where(unsure, -np.inf, low), np.where(unsure, np.inf, high)


def _inverse(one):
    low, high = one
    within = (low <= 0) & (high >= 0)
    return (
        np.where(within & ~((low == 0) & (high > 0)), -np.inf, 1 / np.where(high == 0, 1, high)),
        np.where(within & ~((high == 0) & (low < 0)), np.inf, 1 / np.where(low == 0, 1, low)),
    )


def _ends(one):
    return one.low, one.high


def _chain(one, bounds):
    """Applies the chain rule: returns the slope of an operation on `one`. `bounds` are the bounds of the operation's own
    slope."""
    return one.slope and _product(bounds, one.slope)


def _hull(one, two):
    return np.fmin(one[0], two[0]), np.fmax(one[1], two[1])


_ANY = (-np.inf, np.inf)


# Operations. Arguments: the formula, the variable's Range and the arguments' Ranges. Results: a Range and the relative
# rounding error; if binary64 bounds are not exact, also their distances below and above.


def _constant(formula, variable):
    """Returns the :class:`Range` of a constant. A constant with many digits, such as 1/6, is assumed to be rounded to
    binary32."""
    value = np.broadcast_to(np.float64(formula.parameter), np.shape(variable.low))
    zero = np.broadcast_to(0.0, np.shape(variable.low))
    fraction = math.frexp(formula.parameter)[0] * 2**_SHORT if math.isfinite(formula.parameter) else 0
    rest = 0 if fraction == int(fraction) else abs(formula.parameter) * _ROUNDED
    return Range(value, value, variable.slope and (zero, zero)), 0, rest, rest


def _inexact(value, lacking):
    """Returns the distance between an exact number and its binary64 value, which differ by `lacking`. Returns 0 if the distance
    is negligible."""
    return np.where((lacking > _NOTHING) & np.isfinite(value), 2.0**-52 * np.abs(value), 0)


def _left_over(one, two):
    total = one + two
    part = total - one
    return _inexact(total, np.abs((one - (total - part)) + (two - part)))


def _add(formula, variable, one, two):
    low, high = _sum(_ends(one), _ends(two))
    gone = np.isinf(one.low) & (one.low == one.high) & (two.low == two.high) & (one.low == -two.low)
    result = Range(low, high, one.slope and _sum(one.slope, two.slope))
    result = _nowhere(result, gone) if gone.any() else result
    return result, _ROUNDED, _left_over(one.low, two.low), _left_over(one.high, two.high)


def _never(one, two):
    """Returns True where a product is certainly NaN, because 0 is multiplied by infinity."""
    return (one.low == 0) & (one.high == 0) & np.isinf(two.low) & (two.low == two.high)


def _multiply(formula, variable, one, two):
    if formula.arguments[0] == formula.arguments[1]:
        return _power(formula, variable, one, exponent=2)
    slope = one.slope and _sum(_product(one.slope, _ends(two)), _product(_ends(one), two.slope))
    result, gone = Range(*_product(_ends(one), _ends(two)), slope), _never(one, two) | _never(two, one)
    return (_nowhere(result, gone) if gone.any() else result), _ROUNDED


def _divide(formula, variable, one, two):
    inverse = _inverse(_ends(two))
    quotient = _product(_ends(one), inverse)
    slope = None
    if one.slope:
        slope = _sum(one.slope, tuple(-end for end in _product(quotient, two.slope))[::-1])
        slope = _product(slope, inverse)
    infinite = [np.isinf(value.low) & (value.low == value.high) for value in (one, two)]
    zero = [(value.low == 0) & (value.high == 0) for value in (one, two)]
    gone = infinite[0] & infinite[1] | zero[0] & zero[1]
    result = Range(*quotient, slope)
    return (_nowhere(result, gone) if gone.any() else result), _ROUNDED


def _negative(formula, variable, one):
    return Range(-one.high, -one.low, one.slope and (-one.slope[1], -one.slope[0])), 0


def _sizes(one):
    near = np.where((one.low <= 0) & (one.high >= 0), 0, np.minimum(np.abs(one.low), np.abs(one.high)))
    return near, np.maximum(np.abs(one.low), np.abs(one.high))


def _absolute(formula, variable, one):
    signs = np.where(one.low >= 0, 1.0, -1.0), np.where(one.high <= 0, -1.0, 1.0)
    return Range(*_sizes(one), _chain(one, signs)), 0


def _larger(formula, variable, one, two):
    slope = one.slope and tuple(
        np.where(one.low >= two.high, a, np.where(two.low >= one.high, b, ends))
        for a, b, ends in zip(one.slope, two.slope, _hull(one.slope, two.slope))
    )
    return Range(np.fmax(one.low, two.low), np.fmax(one.high, two.high), slope), 0


def _smaller(formula, variable, one, two):
    result, error = _larger(formula, variable, *(_negative(formula, variable, value)[0] for value in (one, two)))
    return _negative(formula, variable, result)[0], error


def _raised(one, exponent):
    if exponent % 2:
        return one.low**exponent, one.high**exponent
    near, far = _sizes(one)
    return near**exponent, far**exponent


def _power(formula, variable, one, exponent=None):
    exponent = exponent or formula.parameter
    slope = one.slope and _chain(one, tuple(exponent * end for end in _raised(one, exponent - 1)) if exponent > 1 else (1.0, 1.0))
    return Range(*_raised(one, exponent), slope), _ROUNDED if exponent == 2 else _NEARLY


def _rising(function, slope, tail=None):
    """Makes the operation of an increasing function. `slope` computes bounds of the slope from the argument and from the bounds
    of the value. `tail` bounds the distance of the value from the function's limit, such as erf(x) from 1."""

    def rest(x, value):
        return _inexact(value, tail(x) if tail else np.inf)

    def apply(formula, variable, one):
        low, high = function(one.low), function(one.high)
        result = Range(low, high, one.slope and _chain(one, slope(one, low, high)))
        return result, _NEARLY, rest(one.low, low), rest(one.high, high)

    return apply


def _bell(bell):
    """Returns a function for the bounds of an even slope with its maximum at 0. `bell` computes the slope at one number."""

    def bounds(one, low, high):
        near, far = _sizes(one)
        return bell(far), bell(near)

    return bounds


def _logistic(x):
    return 1 / (1 + np.exp(-x))


def _softsign(x):
    return np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))


def _logistic_bell(x):
    return np.exp(-x) * _logistic(x) ** 2


def _log(formula, variable, one):
    low, high = np.maximum(one.low, 0), np.maximum(one.high, 0)
    result = Range(np.log(low), np.log(high), _chain(one, (1 / high, 1 / low)))
    return _nowhere(result, one.high < 0), _NEARLY


def _sqrt(formula, variable, one):
    low, high = np.sqrt(np.maximum(one.low, 0)), np.sqrt(np.maximum(one.high, 0))
    result = Range(low, high, _chain(one, (0.5 / high, 0.5 / low)))
    return _nowhere(result, one.high < 0), _ROUNDED


def _sign_of_slope(one, unsure):
    return one.slope and (np.where(unsure, -np.inf, 0.0), np.where(unsure, np.inf, 0.0))


def _compared(strictly):
    def apply(formula, variable, one, two):
        above, below = (one.low > two.high, one.high <= two.low) if strictly else (one.low >= two.high, one.high < two.low)
        gone = np.isnan(one.low) | np.isnan(two.low)
        unsure = one.domain.undefined | two.domain.undefined  # a comparison with NaN is false
        true, perhaps = above & ~gone & ~np.asarray(unsure), ~below & ~gone
        return Range(true * 1.0, perhaps * 1.0, _sign_of_slope(one, true != perhaps)), 0

    return apply


def _not(formula, variable, one):
    return Range(1 - one.high, 1 - one.low, one.slope), 0


def _where(formula, variable, truth, one, two):
    true, false = truth.low == 1, truth.high == 0
    ends = _hull(_ends(one), _ends(two))
    chosen = [np.where(true, a, np.where(false, b, both)) for a, b, both in zip(_ends(one), _ends(two), ends)]
    slope = one.slope and tuple(np.where(true, a, np.where(false, b, unsure)) for a, b, unsure in zip(one.slope, two.slope, _ANY))
    return Range(*chosen, slope), 0


_OPERATIONS = {
    "constant": _constant,
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "negative": _negative,
    "absolute": _absolute,
    "largest": _larger,
    "least": _smaller,
    "power": _power,
    "log": _log,
    "sqrt": _sqrt,
    "where": _where,
    "not": _not,
    "greater": _compared(True),
    "at_least": _compared(False),
    "exp": _rising(np.exp, lambda one, low, high: (low, high), lambda x: 2 * np.abs(x)),
    "expm1": _rising(np.expm1, lambda one, low, high: (np.exp(one.low), np.exp(one.high)), np.exp),
    "softplus": _rising(
        lambda x: np.logaddexp(0, x), lambda one, low, high: (_logistic(one.low), _logistic(one.high)), lambda x: np.exp(-x)
    ),
    "sigmoid": _rising(_logistic, _bell(_logistic_bell), lambda x: np.exp(-x)),
    "tanh": _rising(np.tanh, _bell(lambda x: 4 * _logistic_bell(2 * x)), lambda x: 2 * np.exp(-2 * np.abs(x))),
    "softsign": _rising(_softsign, _bell(lambda x: (1 + x) ** -2.0), lambda x: 1 / (1 + np.abs(x))),
    "erf": _rising(_each, _bell(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)), lambda x: _rest(np.abs(x))),
    "normal": _rising(lambda x: 0.5 * _rest(-x * math.sqrt(0.5)), _bell(lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi))),
}

"""Proofs, by interval bounds, that a formula equals an activation function of the core for every binary32 number.

All bfloat16 numbers are compared one by one. Between two adjacent numbers, one of two conditions must hold. Either the bounds of
both values are close to each other, or the bounds of both slopes are. In the second case both functions stay near straight lines
whose ends agree. If neither condition holds, as around a bend or a jump, the interval is divided into 16, recursively down to
adjacent binary32 numbers. No deviation can therefore be missed between the numbers compared.

The tolerance is 2^-10 of the value, at most a quarter of bfloat16's last place, plus the rounding error of computing the
operations one by one in binary32, as ONNX does. This error may be large where the value is small: 1 + erf(x) has few correct
digits for gelu at -6. The error must be small relative to the function's values at 1 and -1; otherwise ONNX's own result is
meaningless.

If a computation in binary32 overflows to infinity, the exact value is compared: x * clip(x + 3, 0, 6) / 6 overflows for x of
5.7e37 or more. If it overflows to NaN, as x * exp(x) / (1 + exp(x)) does for x of 89 or more, the exact value is compared where
binary64 can represent it, and any value is accepted beyond. A NaN without an overflow, such as log(x) below 0, is a value that
no function has; :mod:`sim.functions.domains` finds it. Subnormal numbers are not compared, because the core flushes them.
"""

import numpy as np

from .formulas import VARIABLE, parts_of
from .ranges import LARGEST, evaluate

__all__ = ["MOST_WORK", "agrees", "proof", "proves", "jump"]

#: Work limit of one proof, in numbers times operations. A second allows about 2^20. The longest form in the tests takes a third
#: of the limit.
MOST_WORK = 1 << 23

_RELATIVE = 2.0**-10
_SMALLEST = 2.0**-125  # error caused by flushing subnormal numbers
_NEXT_TO_NOTHING = 2.0**-118  # error that an overflow may cause: binary32 computes x / (1 + exp(-x)) as 0 from -89 on
_BLUR = 2.0**-12  # largest error of binary32, relative to the function's values at the numbers below
_USUAL = np.array([-1.0, 0.0, 1.0])
_MOST = 1 << 14  # largest number of intervals subdivided at a time
_INFINITE = 2.0**128 - 2.0**119  # numbers from here on round to infinity in bfloat16
_TOP = 2.0**128 - 2.0**108
_MOST_JUMPS = 8  # largest number of intervals searched for a jump
_FIRST, _COUNT = 0x00800000, 0x7F00  # bits of the least normal number; number of bfloat16 from it to infinity


def agrees(found, function, exact, x):
    """Returns True for each number `x` at which a formula matches a function. `found` is the formula's :class:`.Range`, and
    `exact` the function's values. NaN matches NaN."""
    return _compared(found, function, exact, x)[0]


def _compared(found, function, exact, x):
    """Compares a formula with a function at numbers `x`. Returns `(agreement, error, blur)`: a bool, the distance of the exact
    value from the formula's bounds, and the rounding error of binary32."""
    with np.errstate(all="ignore"):
        low, high, size = found.low, found.high, _size(exact)
        error, blur = np.maximum(np.maximum(low - exact, exact - high), 0), high - low
        allowed = _RELATIVE * size + _SMALLEST
        sharp = (blur <= allowed + _BLUR * max(_size(function.exact(_USUAL)))) | np.isinf(x)
        same = _beyond(low, high, exact, exact) | np.isnan(low) & np.isnan(high)
        right = ((error <= allowed) & sharp | same) & ~np.asarray(found.domain.undefined)
        return right, np.where(same, 0, error), np.where(same, 0, blur)


def _size(exact):
    """Returns the magnitude to which the relative tolerance applies. It is 0 for infinities, which get no tolerance."""
    return np.where(np.isfinite(exact), np.abs(exact), 0)


def _beyond(low, high, other_low, other_high):
    """Returns True where two ranges are both infinite in bfloat16, with the same sign."""
    return (low >= _INFINITE) & (other_low >= _INFINITE) | (high <= -_INFINITE) & (other_high <= -_INFINITE)


def _numbers(patterns):
    """Converts binary32 bit patterns to float64. Infinity becomes a finite number that rounding does not make infinite."""
    return np.minimum(np.asarray(patterns, np.uint32).view(np.float32).astype(float), _TOP)


def _points(formula, function, x):
    """Compares a formula with a function at numbers `x`. Returns `(agreement, error, blur, exact value)`; see
    :func:`_compared`."""
    exact, parts = function.exact(x), {}
    found = evaluate(formula, x, x, overflow=True, known=parts)
    undefined = np.broadcast_to(found.domain.undefined, x.shape).copy()
    right, error, blur = _compared(found, function, exact, x)
    over = np.flatnonzero(np.isfinite(x) & _any(parts, lambda one: ~np.isfinite(one.low) | ~np.isfinite(one.high)))
    if over.size:
        wider = evaluate(formula, x[over], x[over])
        undefined[over] = wider.domain.undefined
        again = _compared(wider, function, exact[over], x[over])
        # Values that overflow turned infinite, NaN, or nearly 0.
        gone = np.isnan(found.low)
        spoilt = ~np.isfinite(found.low) | ~np.isfinite(found.high) | (np.maximum(error, blur) <= _NEXT_TO_NOTHING)
        lost = (gone | ~right & spoilt)[over]
        beyond = gone[over] & ~np.isfinite(wider.low) & ~np.isfinite(wider.high)
        error[over] = np.where(beyond, 0, np.where(lost, again[1], np.maximum(error[over], again[1])))
        blur[over] = np.where(beyond, 0, np.where(lost, again[2], blur[over]))
        right[over] = beyond | np.where(lost, again[0], right[over])
    return right & ~undefined, error, blur, exact


def _any(parts, condition):
    return np.any([condition(one) for part, one in parts.items() if part.operation != "constant"], axis=0)


def _closed(formula, other, x, error, blur, exact):
    """Returns True for each interval between adjacent numbers `x` on which two formulas agree. They must agree at the numbers."""
    low, high = np.minimum(x[:, :-1], x[:, 1:]), np.maximum(x[:, :-1], x[:, 1:])
    parts = {}
    one, two = evaluate(formula, low, high, slopes=True, known=parts), evaluate(other, low, high, slopes=True)
    # If a subexpression overflows only in a section of the interval, its binary32 value there has no bounds.
    uneven = _any(parts, lambda one: (one.low < LARGEST) & (one.high > LARGEST) | (one.low < -LARGEST) & (one.high > -LARGEST))
    with np.errstate(all="ignore"):
        size = _size(exact)
        allowed = _RELATIVE * np.minimum(size[:, :-1], size[:, 1:]) + np.maximum(blur[:, :-1], blur[:, 1:]) + _SMALLEST
        together = np.maximum(one.high, two.high) - np.minimum(one.low, two.low) <= allowed
        bend = sum(each.slope[1] - each.slope[0] for each in (one, two))
        straight = np.maximum(error[:, :-1], error[:, 1:]) + (high - low) * bend / 4 <= allowed
        beyond = _beyond(one.low, one.high, two.low, two.high) | np.isnan(one.low) & np.isnan(one.high)
        return ((together | straight) & ~uneven | beyond) & ~np.asarray(one.domain.undefined)


def proves(formula, function):
    """Returns True if an elementwise formula equals a :class:`sim.functions.functions.Function` for every number."""
    return proof(formula, function)[0]


def proof(formula, function):
    """Tries to prove that a formula equals a function. Returns `(proved, work)`: the result of :func:`proves`, and the work in
    numbers times operations. A proof that needs more than `MOST_WORK` is abandoned and counts as failed."""
    operations, work = len(parts_of(formula)), 0
    ends = np.array([0.0, np.inf, -np.inf])
    if not _points(formula, function, ends)[0].all():
        return False, work
    other = function.formula(VARIABLE)
    signs, starts = np.array([1.0, -1.0]), np.array([_FIRST, _FIRST])
    count, step = _COUNT, 1 << 16
    while True:
        patterns = starts[:, None] + step * np.arange(count + 1)
        work += patterns.size * operations
        if work > MOST_WORK:
            return False, work
        x = signs[:, None] * _numbers(patterns)
        right, *facts = (each.reshape(x.shape) for each in _points(formula, function, x.ravel()))
        if not right.all():
            return False, work
        if step == 1:
            return True, work
        row, column = np.nonzero(~_closed(formula, other, x, *facts))
        if not row.size:
            return True, work
        if row.size > _MOST:
            return False, work
        signs, starts = signs[row], patterns[row, column]
        count, step = 16, step >> 4


def jump(formula):
    """Returns a number at which an elementwise formula jumps, or None. The search covers all intervals between adjacent bfloat16
    numbers in which a condition of the formula may change."""
    signs = np.array([[1.0], [-1.0]])
    x = signs * _numbers(_FIRST + (np.arange(_COUNT + 1) << 16))
    found = evaluate(formula, np.minimum(x[:, :-1], x[:, 1:]), np.maximum(x[:, :-1], x[:, 1:]), slopes=True)
    with np.errstate(all="ignore"):
        row, column = np.nonzero(np.isinf(found.slope[1] - found.slope[0]) & (found.high > found.low))
    patterns = _FIRST + (column[:_MOST_JUMPS, None] << 16) + np.arange((1 << 16) + 1)
    for near in (np.array([-(2.0**-126), 0, 2.0**-126]), *(signs[row[:_MOST_JUMPS]] * _numbers(patterns))):
        found = evaluate(formula, near, near)
        with np.errstate(all="ignore"):
            value = (found.low + found.high) / 2
            higher = np.abs(np.diff(value)) > 2.0**-8 * np.maximum(np.abs(value[1:]), np.abs(value[:-1])) + 2.0**-100
        if higher.any():
            return float(near[higher.argmax()])
    return None

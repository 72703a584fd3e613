"""Proofs that a formula equals one of the core's functions for every binary32, by interval bounds.

All bfloat16 are compared one by one. Between two neighbours, one of two conditions must hold. The bounds of both values are close
to each other; or the bounds of both slopes are close, so that both functions stay near straight lines between ends that agree. If
neither holds, as around a bend or a jump, the range is divided by 16, recursively down to neighbouring binary32. So no deviation
can hide between the probes.

The tolerance is 2^-10 of the value, at most a quarter of bfloat16's last place, plus the error of computing the operations one by
one in binary32, as ONNX does: 1 + erf(x) says little about gelu at -6. That error must be small relative to the function's values
at 1 and -1; otherwise ONNX' own result is meaningless.

If such a computation overflows to infinity, as x * clip(x + 3, 0, 6) / 6 does from 5.7e37 on, the exact value counts. If it
overflows to NaN, as x * exp(x) / (1 + exp(x)) does from 89 on, the exact value counts as far as binary64 can represent it, and
beyond that any value is accepted. A NaN without an overflow, as log(x) has below 0, is a value, and none of the functions has it:
:mod:`sim.functions.domains` finds it. Subnormal numbers are not compared: the core has none.
"""

import numpy as np

from .formulas import VARIABLE, parts_of
from .ranges import LARGEST, evaluate

__all__ = ["MOST_WORK", "agrees", "proof", "proves", "jump"]

#: Work limit of one proof, in numbers times operations; about 2^20 a second. The longest form in the tests takes a third.
MOST_WORK = 1 << 23

_RELATIVE = 2.0**-10
_SMALLEST = 2.0**-125  # error of flushing subnormal numbers
_NEXT_TO_NOTHING = 2.0**-118  # error that an overflow may cause: x / (1 + exp(-x)) is 0 from -89 on
_BLUR = 2.0**-12  # largest error of binary32, relative to the function at the numbers below
_USUAL = np.array([-1.0, 0.0, 1.0])
_MOST = 1 << 14  # most ranges that are subdivided at a time
_INFINITE = 2.0**128 - 2.0**119  # numbers from here on round to infinity in bfloat16
_TOP = 2.0**128 - 2.0**108
_MOST_JUMPS = 8  # most ranges that are searched for a jump
_FIRST, _COUNT = 0x00800000, 0x7F00  # bits of the least normal number; number of bfloat16 from there to infinity


def agrees(found, function, exact, x):
    """Returns True where a formula's Range at numbers x matches a function, whose values there are `exact`. NaN matches NaN."""
    return _compared(found, function, exact, x)[0]


def _compared(found, function, exact, x):
    """Returns, for numbers x, `(agreement, error, blur)`: the distance of the bounds from the exact value, and the error of
    binary32."""
    with np.errstate(all="ignore"):
        low, high, size = found.low, found.high, _size(exact)
        error, blur = np.maximum(np.maximum(low - exact, exact - high), 0), high - low
        allowed = _RELATIVE * size + _SMALLEST
        sharp = (blur <= allowed + _BLUR * max(_size(function.exact(_USUAL)))) | np.isinf(x)
        same = _beyond(low, high, exact, exact) | np.isnan(low) & np.isnan(high)
        right = ((error <= allowed) & sharp | same) & ~np.asarray(found.domain.undefined)
        return right, np.where(same, 0, error), np.where(same, 0, blur)


def _size(exact):
    """Returns the magnitude that the relative tolerance applies to: 0 for infinities, which have no tolerance."""
    return np.where(np.isfinite(exact), np.abs(exact), 0)


def _beyond(low, high, other_low, other_high):
    """Returns True where two ranges are both infinite in bfloat16."""
    return (low >= _INFINITE) & (other_low >= _INFINITE) | (high <= -_INFINITE) & (other_high <= -_INFINITE)


def _numbers(patterns):
    """Returns float64 numbers of binary32 bits; for infinity, a number small enough that rounding does not make it infinite."""
    return np.minimum(np.asarray(patterns, np.uint32).view(np.float32).astype(float), _TOP)


def _points(formula, function, x):
    """Returns `(agreement, error, blur, exact value)` at numbers x, see :func:`_compared`."""
    exact, parts = function.exact(x), {}
    found = evaluate(formula, x, x, overflow=True, known=parts)
    undefined = np.broadcast_to(found.domain.undefined, x.shape).copy()
    right, error, blur = _compared(found, function, exact, x)
    over = np.flatnonzero(np.isfinite(x) & _any(parts, lambda one: ~np.isfinite(one.low) | ~np.isfinite(one.high)))
    if over.size:
        wider = evaluate(formula, x[over], x[over])
        undefined[over] = wider.domain.undefined
        again = _compared(wider, function, exact[over], x[over])
        # Values that overflow has made infinite, NaN, or nearly 0.
        gone = np.isnan(found.low)
        spoilt = ~np.isfinite(found.low) | ~np.isfinite(found.high) | (np.maximum(error, blur) <= _NEXT_TO_NOTHING)
        lost = (gone | ~right & spoilt)[over]
        beyond = gone[over] & ~np.isfinite(wider.low) & ~np.isfinite(wider.high)
        error[over] = np.where(beyond, 0, np.where(lost, again[1], np.maximum(error[over], again[1])))
        blur[over] = np.where(beyond, 0, np.where(lost, again[2], blur[over]))
        right[over] = beyond | np.where(lost, again[0], right[over])
    return right & ~undefined, error, blur, exact


def _any(parts, condition):
    """Returns True where a condition holds for the Range of any subexpression, except constants."""
    return np.any([condition(one) for part, one in parts.items() if part.operation != "constant"], axis=0)


def _closed(formula, other, x, error, blur, exact):
    """Returns True for each interval between neighbouring numbers x on which two formulas agree, given that they agree at x."""
    low, high = np.minimum(x[:, :-1], x[:, 1:]), np.maximum(x[:, :-1], x[:, 1:])
    parts = {}
    one, two = evaluate(formula, low, high, slopes=True, known=parts), evaluate(other, low, high, slopes=True)
    # If a subexpression overflows in a part of the interval only, the behaviour of binary32 there is not bounded.
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
    """Returns True if an elementwise formula is a :class:`sim.functions.functions.Function` for every number."""
    return proof(formula, function)[0]


def proof(formula, function):
    """Returns `(proved, work)`: the result of :func:`proves`, and its work as numbers times operations. A proof that needs more
    than `MOST_WORK` is abandoned and counts as a failure."""
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
    """Returns a number at which an elementwise formula jumps, or None. The search covers all intervals between neighbouring
    bfloat16 in which a branch may change."""
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

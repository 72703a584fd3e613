"""Domain analysis of a formula. For each range of the variable, it tells if the exact value may be undefined, infinite or zero.

The facts concern the exact value, without overflow or underflow: exp(x) / exp(x) is defined at 1000. A NaN without an overflow,
such as log(-1) or 0 / 0, is a value of the ONNX model that no function of the core has. The analysis is conservative: it may
report a value that cannot occur, but never misses a value that can.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Domain", "domain"]


@dataclass(frozen=True, eq=False)
class Domain:
    """Facts about the exact value of a formula, for each range of the variable."""

    #: undefined, pole, zero: Bool arrays, or bool for all ranges. True if the value may be NaN (`undefined`), infinite (`pole`),
    #: or 0 (`zero`).
    undefined: np.ndarray | bool = False
    pole: np.ndarray | bool = False
    zero: np.ndarray | bool = False


def domain(formula, result, arguments):
    """Returns the :class:`Domain` of an operation's result.

    Parameters
    ----------
    formula : Formula
    result : Range
        Bounds of the operation's result, without the domain.
    arguments : list of Range
        Bounds and domain of each argument.
    """
    return _RULES[formula.operation](formula, result, *arguments)


def _around_zero(one):
    return ~((one.low > 0) | (one.high < 0))


def _below_zero(one):
    return ~(one.low >= 0)


def _undefined(*arguments):
    result = False
    for one in arguments:
        result = result | one.domain.undefined
    return result


def _constant(formula, result):
    value = formula.parameter
    return Domain(bool(np.isnan(value)), bool(np.isinf(value)), value == 0)


def _variable(formula, result):
    return Domain(zero=_around_zero(result))


def _add(formula, result, one, two):
    a, b = one.domain, two.domain
    same = (one.low >= 0) & (two.low >= 0) | (one.high <= 0) & (two.high <= 0)
    zero = _around_zero(result) & (~same | a.zero & b.zero)
    return Domain(_undefined(one, two) | a.pole & b.pole, a.pole | b.pole, zero)


def _multiply(formula, result, one, two):
    a, b = one.domain, two.domain
    return Domain(_undefined(one, two) | a.pole & b.zero | a.zero & b.pole, a.pole | b.pole, a.zero | b.zero)


def _divide(formula, result, one, two):
    a, b = one.domain, two.domain
    return Domain(_undefined(one, two) | a.zero & b.zero | a.pole & b.pole, a.pole | b.zero, a.zero | b.pole)


def _extremum(formula, result, one, two):
    a, b = one.domain, two.domain
    return Domain(_undefined(one, two), a.pole | b.pole, _around_zero(result) & (a.zero | b.zero))


def _log(formula, result, one):
    return Domain(_undefined(one) | _below_zero(one), one.domain.pole | one.domain.zero, _around_zero(result))


def _sqrt(formula, result, one):
    return Domain(_undefined(one) | _below_zero(one), one.domain.pole, one.domain.zero)


def _where(formula, result, truth, one, two):
    a, b, true, false = one.domain, two.domain, truth.low == 1, truth.high == 0
    facts = ((a.undefined, b.undefined), (a.pole, b.pole), (a.zero, b.zero))
    return Domain(*(np.where(true, x, np.where(false, y, np.logical_or(x, y))) for x, y in facts))


def _truth(formula, result, *arguments):
    """Returns the domain of a comparison. It is defined even for NaN, since a comparison with NaN is false."""
    return Domain()


def _same(formula, result, one):
    return one.domain


def _bounded(formula, result, one):
    return Domain(one.domain.undefined, False, one.domain.zero)


def _positive(formula, result, one):
    return Domain(one.domain.undefined, one.domain.pole, one.domain.pole)


_RULES = {
    "variable": _variable,
    "constant": _constant,
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "largest": _extremum,
    "least": _extremum,
    "log": _log,
    "sqrt": _sqrt,
    "where": _where,
    **dict.fromkeys(("greater", "at_least", "not"), _truth),
    **dict.fromkeys(("negative", "absolute", "power", "expm1"), _same),
    **dict.fromkeys(("erf", "tanh", "softsign"), _bounded),
    **dict.fromkeys(("exp", "normal", "sigmoid", "softplus"), _positive),
}

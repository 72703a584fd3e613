"""Recognition of Softmax and LogSoftmax that a model writes in smaller operators, by the structure of the formula.

    e = exp(x - max(x)),   e / sum(e)   or   e * (1 / sum(e)),   (x - max(x)) - log(sum(e)),   x - logsumexp(x)

max, sum and logsumexp are over one axis. A tiny number may be added to the sum, which is at least 1. The form without the
subtraction of the maximum is not recognised: its exp overflows for operands of 89 or more, and a sum of a few exponentials
overflows earlier. ONNX then returns zeros, where the softmax of the core would return probabilities.
"""

from ...functions.formulas import VARIABLE
from .tensor_formulas import reduced

__all__ = ["shares"]

_NOTHING = 2.0**-12


def shares(formula, shape):
    """Returns `("softmax", axis)` if a formula is a softmax, and `("log", axis)` if it is the logarithm of a softmax. Returns
    None for any other formula. `shape` is the shape of the formula's variable."""
    arguments = formula.arguments
    if formula.operation == "divide":
        return _shares(arguments[0], arguments[1], shape)
    if formula.operation == "multiply":
        for one, two in (arguments, arguments[::-1]):
            if two.operation == "divide" and _is_number(two.arguments[0], 1):
                return _shares(one, two.arguments[1], shape)
    if formula.operation == "add":
        for one, two in (arguments, arguments[::-1]):
            found = two.operation == "negative" and _logarithms(one, two.arguments[0], shape)
            if found:
                return found
    return None


def _is_number(formula, value):
    return formula.operation == "constant" and formula.parameter == value


def _shares(exponential, total, shape):
    axis = _total_axis(exponential, total, shape)
    return (
        None
        if axis is None or exponential.operation != "exp" or not _is_shifted(exponential.arguments[0], axis, shape)
        else ("softmax", axis)
    )


def _logarithms(one, two, shape):
    logarithm = _row(two, "ReduceLogSumExp", one, shape)
    if logarithm is not None and (one == VARIABLE or _is_shifted(one, logarithm, shape)):
        return "log", logarithm
    total = _unshaped_log(two)
    if total is None:
        return None
    exponential = _reduced_of(total)
    if exponential is None or exponential.operation != "exp" or exponential.arguments[0] != one:
        return None
    axis = _row(total, "ReduceSum", exponential, shape)
    return None if axis is None or not _is_shifted(one, axis, shape) else ("log", axis)


def _total_axis(exponential, total, shape):
    """Returns the axis over which the formula `total` is the sum of the formula `exponential`."""
    if total.operation == "add":
        for one, two in (total.arguments, total.arguments[::-1]):
            if two.operation == "constant" and 0 <= two.parameter <= _NOTHING:
                total = one
                break
    return _row(total, "ReduceSum", exponential, shape)


def _is_shifted(formula, axis, shape):
    if formula.operation != "add":
        return False
    one, two = formula.arguments
    one, two = (one, two) if one == VARIABLE else (two, one)
    return one == VARIABLE and two.operation == "negative" and _row(two.arguments[0], "ReduceMax", VARIABLE, shape) == axis


def _unshaped_log(formula):
    return formula.arguments[0] if formula.operation == "log" else None


def _reduced_of(formula):
    while formula.operation in ("reshape", "expand"):
        (formula,) = formula.arguments
    return formula.arguments[0] if formula.operation == "ReduceSum" else None


def _row(formula, reduction, of, shape):
    """Checks that `formula` is the reduction of `of` by the operator `reduction`, broadcast back to the shape of `of`, so that
    each number is combined with the result of its own row. Returns the axis of the reduction. Returns None if the check fails."""
    given = None
    if formula.operation == "expand" and formula.parameter == shape:
        (formula,) = formula.arguments
    while formula.operation == "reshape":
        given = given or formula.parameter
        (formula,) = formula.arguments
    if formula.operation != reduction or formula.arguments[0] != of or formula.parameter[1] != shape:
        return None
    axis, _, kept = formula.parameter
    given = given or (reduced(shape, axis) if kept else None)
    return axis if given is not None and given == reduced(shape, axis) else None

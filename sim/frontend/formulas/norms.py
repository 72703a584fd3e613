"""Recognition of written-out normalisations by their structure.

    d = x - mean(x),   y = d / sqrt(mean(d * d) + epsilon)        LayerNormalization
    y = x / sqrt(mean(x * x) + epsilon)                           RMSNormalization

All means are over the same axes. A product with 1 / sqrt(...) may replace the division. Means that lose their axes must get them
back by a Reshape, so that each number meets its own mean.
"""

import math

from ...functions.formulas import VARIABLE
from .tensor_formulas import reduced

__all__ = ["normalisation"]


def normalisation(formula, shape):
    """Returns `(axes, epsilon, True if the mean is subtracted)` if a formula of a tensor of this shape is a normalisation, else
    None."""
    if formula.operation == "divide":
        return _quotient(formula.arguments[0], formula.arguments[1], None, shape)
    if formula.operation == "multiply":
        for one, two in (formula.arguments, formula.arguments[::-1]):
            two, given = _unshaped(two, None, shape)
            if two.operation == "divide" and _is_number(two.arguments[0]) and two.arguments[0].parameter == 1:
                return _quotient(one, two.arguments[1], given, shape)
    return None


def _quotient(dividend, root, given, shape):
    """Returns :func:`normalisation` of a dividend and a divisor, whose shape may be `given` by a Reshape after it."""
    root, given = _unshaped(root, given, shape)
    if root.operation != "sqrt":
        return None
    variance, given = _unshaped(root.arguments[0], given, shape)
    epsilon = 0.0
    if variance.operation == "add":
        for one, two in (variance.arguments, variance.arguments[::-1]):
            if _is_number(two):
                variance, epsilon = one, two.parameter
                break
    squares, axes = _mean(variance, given, shape)
    if axes is None or not 0 <= epsilon < math.inf:
        return None
    if squares.operation == "power" and squares.parameter == 2:
        one = two = squares.arguments[0]
    elif squares.operation == "multiply":
        one, two = squares.arguments
    else:
        return None
    centred = dividend != VARIABLE
    parts = (dividend, one, two)
    if any(_centred_over(part, shape) != axes if centred else part != VARIABLE for part in parts):
        return None
    return axes, epsilon, centred


def _is_number(formula):
    return formula.operation == "constant"


def _centred_over(formula, shape):
    """Returns the axes if a formula is the variable minus its mean over these axes, else None."""
    if formula.operation != "add":
        return None
    for one, two in (formula.arguments, formula.arguments[::-1]):
        two, given = _unshaped(two, None, shape)
        if one == VARIABLE and two.operation == "negative":
            operand, axes = _mean(two.arguments[0], given, shape)
            return axes if operand == VARIABLE else None
    return None


def _mean(formula, given, shape):
    """Returns `(operand, axes)` if a formula is a mean of an operand of this shape, in the shape of the mean with its axes kept,
    else `(None, None)`."""
    formula, given = _unshaped(formula, given, shape)
    if formula.operation != "ReduceMean" or formula.parameter[1] != shape:
        return None, None
    axes, _, kept = formula.parameter
    wanted = reduced(shape, *axes)
    if wanted is None or (given or (wanted if kept else None)) != wanted:
        return None, None
    return formula.arguments[0], axes


def _unshaped(formula, given, shape):
    """Returns `(formula, given)` without Reshapes, of which the last one gives the shape, and without an Expand after them."""
    if given is None and formula.operation == "expand" and formula.parameter == shape:
        (formula,) = formula.arguments
    while formula.operation == "reshape":
        given = given or formula.parameter
        (formula,) = formula.arguments
    return formula, given

"""Recognition of normalisations that a model writes in smaller operators, by the structure of the formula.

    d = x - mean(x),   y = d / sqrt(mean(d * d) + epsilon)        LayerNormalization
    y = x / sqrt(mean(x * x) + epsilon)                           RMSNormalization

All means are over the same axes. A product with 1 / sqrt(...) may replace the division. If a mean removes its axes, a Reshape
must insert them again, so that each number is combined with the mean of its own row.
"""

import math

from ...functions.formulas import VARIABLE
from .tensor_formulas import reduced

__all__ = ["normalisation"]


def normalisation(formula, shape):
    """Recognises a formula that is a normalisation of its variable. Returns `(axes, epsilon, True if the mean is subtracted)`,
    or None for any other formula. `shape` is the shape of the variable."""
    if formula.operation == "divide":
        return _quotient(formula.arguments[0], formula.arguments[1], None, shape)
    if formula.operation == "multiply":
        for one, two in (formula.arguments, formula.arguments[::-1]):
            two, given = _unshaped(two, None, shape)
            if two.operation == "divide" and _is_number(two.arguments[0]) and two.arguments[0].parameter == 1:
                return _quotient(one, two.arguments[1], given, shape)
    return None


def _quotient(dividend, root, given, shape):
    """Returns the result of :func:`normalisation` for the quotient `dividend` / `root`. `given` is the shape that a Reshape gives
    the divisor, or None."""
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
    """Returns the axes if a formula is its variable minus the mean of the variable over these axes."""
    if formula.operation != "add":
        return None
    for one, two in (formula.arguments, formula.arguments[::-1]):
        two, given = _unshaped(two, None, shape)
        if one == VARIABLE and two.operation == "negative":
            operand, axes = _mean(two.arguments[0], given, shape)
            return axes if operand == VARIABLE else None
    return None


def _mean(formula, given, shape):
    """Returns `(operand, axes)` if a formula is the mean of an operand over these axes. Returns `(None, None)` for any other
    formula. The operand must have the shape `shape`. The mean must keep the reduced axes, with size 1."""
    formula, given = _unshaped(formula, given, shape)
    if formula.operation != "ReduceMean" or formula.parameter[1] != shape:
        return None, None
    axes, _, kept = formula.parameter
    wanted = reduced(shape, *axes)
    if wanted is None or (given or (wanted if kept else None)) != wanted:
        return None, None
    return formula.arguments[0], axes


def _unshaped(formula, given, shape):
    """Removes the Reshapes at the end of a formula, and an Expand after the Reshapes. Returns `(formula, shape)`. The shape is
    `given` or, if `given` is None, the result of the last Reshape."""
    if given is None and formula.operation == "expand" and formula.parameter == shape:
        (formula,) = formula.arguments
    while formula.operation == "reshape":
        given = given or formula.parameter
        (formula,) = formula.arguments
    return formula, given

"""Divisions by tensors: a reciprocal that is accurate for numbers of all magnitudes.

A function table resolves 16 binades, but bfloat16 has 254. Range reduction therefore brings the divisor into the table's window
first: powers of two multiply it. Within the window, these powers are 1. Each power is multiplied twice, so that the products are
exact:

    x <- (x * h) * h,   h = 2^p below 2^-7, 1 up to 2^7, 2^-p above       p = 32, 24, 12, 6
    a / b = (a * (r * H)) * H,   r the reciprocal of the last x, H the product of all h

r * H and H both have about the magnitude of the root of 1 / b. No intermediate result therefore overflows or underflows unless
the quotient does. The result has two rounding errors: the rounding of r in its table, and the rounding of the product with a. The
inverse root multiplies by H once.

The core flushes subnormals to 0, and sums have no -0: a / -0 is a / 0.
"""

from dataclasses import dataclass, fields, replace
from math import frexp

import numpy as np

from ...functions.functions import WINDOW, Function
from ...fusion.nodes import Linear
from ..formulas.extents import least
from ..index.values import SymbolicTensor
from ..index.views import everything
from ..registry import ELEMENTWISE, operator
from .elementwise import affine, apply_function, product
from .expressions import unknown

__all__ = ["divided", "inverse_root"]

#: Range reductions: (the largest magnitude of an exponent that one covers, the exponents of its powers of two). Rounding moves a
#: number by up to a binade at the ends.
_WAYS = ((WINDOW - 1, ()), (17, (6,)), (41, (12, 6)), (89, (24, 12, 6)), (128, (32, 24, 12, 6)))

#: Number of values per sample up to which repeated small powers are faster than loading the tables of larger powers.
_FEW = 256


def _inverse(step, tensor, function, low, high):
    """Computes the reciprocal or the inverse root (`function`) of a tensor after range reduction. Returns `(r, H)` in the terms
    of the module docstring; H is None if it is 1. The magnitude of the tensor's values must be 0, or from `low` to `high`."""
    tensor, scale = everything(step, tensor), None
    most = max(abs(frexp(low)[1] - 1), abs(frexp(high)[1] - 1))
    ways = [(12 * count + 5, (6,) * count) for count in range(12)] if tensor.size <= _FEW else _WAYS
    for binades in next(way for reach, way in ways if most <= reach):
        power = apply_function(step, tensor, Function("toward_one", (binades,)))
        tensor = product(step, product(step, tensor, power), power)
        scale = power if scale is None else product(step, scale, power)
    return apply_function(step, tensor, Function(function)), scale


def divided(step, dividend, divisor, low=2.0**-126, high=2.0**128):
    """Returns `dividend / divisor`. The dividend may be a constant. The magnitude of the divisor's values must be 0, or from
    `low` to `high`."""
    if isinstance(divisor.source, Root) and np.array_equal(divisor.index, divisor.source.inverse.index):
        inverse = replace(divisor, source=divisor.source.inverse.source)
        return product(step, dividend, inverse) if isinstance(dividend, SymbolicTensor) else affine(step, inverse, scale=dividend)
    root, scale = _inverse(step, divisor, "reciprocal", low, high)
    if scale is not None:
        root = product(step, root, scale)
    if isinstance(dividend, SymbolicTensor):
        result = product(step, dividend, root)
    else:
        result = affine(step, root, scale=np.asarray(dividend, np.float64))
    return result if scale is None else product(step, result, scale)


def inverse_root(step, tensor, low, high):
    """Returns `1 / sqrt(tensor)`. The values of the tensor must be from `low` to `high`, which are not negative."""
    middle = (frexp(low)[1] + frexp(high)[1]) // 4 * 2  # a power of 4
    if middle:
        tensor = affine(step, tensor, scale=np.array(2.0**-middle))
    result, scale = _inverse(step, tensor, "inverse_root", low * 2.0**-middle, high * 2.0**-middle)
    result = result if scale is None else product(step, result, scale)
    return affine(step, result, scale=np.array(2.0 ** (-middle // 2))) if middle else result


@dataclass(eq=False, kw_only=True)
class Root(Linear):
    """The node of a square root. `inverse` is the tensor of its reciprocals, so that a division by the root is a
    multiplication."""

    inverse: SymbolicTensor


@operator("Sqrt", group=ELEMENTWISE, counts_from_end=True)
def square_root(step, tensor):
    """Handles Sqrt of a tensor with a known positive lower bound, such as a variance plus epsilon. Any other Sqrt is supported
    only as part of a recognised function."""
    low = least(tensor.source) if (tensor.index >= 0).all() else 0.0
    if not 2.0**-126 <= low < 2.0**127:
        return unknown(step)
    inverse = inverse_root(step, tensor, low, 2.0**128)
    root = product(step, tensor, inverse)
    facts = {field.name: getattr(root.source, field.name) for field in fields(root.source)}
    return root.of(Root(**facts, inverse=inverse))


@operator("Pow", group=ELEMENTWISE, counts_from_end=True)
def power(step, tensor):
    """Handles squares, square roots and reciprocals. Other powers are supported only as part of a recognised function."""
    base, exponent = step.arguments
    if base is tensor and isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.ndim <= len(tensor.dims):
        if exponent.item() == 2:
            return product(step, tensor, tensor)
        if exponent.item() == 0.5:
            return square_root(step, tensor)
        if exponent.item() == -1:
            return divided(step, np.array(1.0), tensor)
    return unknown(step)


@operator("Div", group=ELEMENTWISE, joins=True, counts_from_end=True)
@operator("Reciprocal", group=ELEMENTWISE, counts_from_end=True)
def divide(step, tensor):
    """Handles Div and Reciprocal of tensors, and Div by constants."""
    if step.operator == "Reciprocal":
        return divided(step, np.array(1.0), tensor)
    dividend, divisor = step.arguments
    if isinstance(divisor, SymbolicTensor):
        return divided(step, dividend, divisor)
    return affine(step, dividend, scale=1 / divisor.astype(np.float64))

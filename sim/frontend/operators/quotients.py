"""Divisions by values: by a reciprocal that is right for numbers of all sizes.

A function table tells 16 binades apart, and numbers of bfloat16 have 254. So what is divided by is brought into the window of the
table first. Powers of two, 1 within the window, are multiplied to it until it is there, each twice, and so exactly:

    x <- (x * h) * h,   h = 2^p below 2^-7, 1 up to 2^7, 2^-p above       p = 32, 24, 12, 6
    a / b = (a * (r * H)) * H,   r the reciprocal of the last x, H the product of all h

r * H and H are both about as large as the root of 1 / b, so that nothing overflows, or is less than the least number, on the way
to a quotient that is neither. Rounded are the reciprocal, from its table, and the product. The inverse root needs H once.

The core takes subnormals for 0, and has no -0 in sums: a / -0 is a / 0.
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

#: Ways to bring numbers into the window: (the largest magnitude of an exponent for which one serves, the exponents of its powers
#: of two). Rounding moves a number by up to a binade at the ends.
_WAYS = ((WINDOW - 1, ()), (17, (6,)), (41, (12, 6)), (89, (24, 12, 6)), (128, (32, 24, 12, 6)))

#: Values of a sample up to which the smallest powers again and again take less time than loading tables of larger ones.
_FEW = 256


def _inverse(step, tensor, function, low, high):
    """`(r, H)` as above, H None for 1, of values of which the magnitude is 0 or from `low` to `high`."""
    tensor, scale = everything(step, tensor), None
    most = max(abs(frexp(low)[1] - 1), abs(frexp(high)[1] - 1))
    ways = [(12 * count + 5, (6,) * count) for count in range(12)] if tensor.size <= _FEW else _WAYS
    for binades in next(way for reach, way in ways if most <= reach):
        power = apply_function(step, tensor, Function("toward_one", (binades,)))
        tensor = product(step, product(step, tensor, power), power)
        scale = power if scale is None else product(step, scale, power)
    return apply_function(step, tensor, Function(function)), scale


def divided(step, dividend, divisor, low=2.0**-126, high=2.0**128):
    """`dividend / divisor`, of which the first may be constant; `low`, `high` as above."""
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
    """`1 / sqrt(tensor)` of values from `low` on up to `high`, which are not negative."""
    middle = (frexp(low)[1] + frexp(high)[1]) // 4 * 2  # a power of 4
    if middle:
        tensor = affine(step, tensor, scale=np.array(2.0**-middle))
    result, scale = _inverse(step, tensor, "inverse_root", low * 2.0**-middle, high * 2.0**-middle)
    result = result if scale is None else product(step, result, scale)
    return affine(step, result, scale=np.array(2.0 ** (-middle // 2))) if middle else result


@dataclass(eq=False, kw_only=True)
class Root(Linear):
    """A square root; `inverse` is the tensor of its reciprocals."""

    inverse: SymbolicTensor


@operator("Sqrt", group=ELEMENTWISE, counts_from_end=True)
def square_root(step, tensor):
    """Sqrt of what is above 0 in any case, such as a variance and a number; any other may only be part of a function."""
    low = least(tensor.source) if (tensor.index >= 0).all() else 0.0
    if not 2.0**-126 <= low < 2.0**127:
        return unknown(step)
    inverse = inverse_root(step, tensor, low, 2.0**128)
    root = product(step, tensor, inverse)
    facts = {field.name: getattr(root.source, field.name) for field in fields(root.source)}
    return root.of(Root(**facts, inverse=inverse))


@operator("Pow", group=ELEMENTWISE, counts_from_end=True)
def power(step, tensor):
    """Squares, square roots and reciprocals; any other may only be part of a function."""
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
    """Div and Reciprocal."""
    if step.operator == "Reciprocal":
        return divided(step, np.array(1.0), tensor)
    dividend, divisor = step.arguments
    if isinstance(divisor, SymbolicTensor):
        return divided(step, dividend, divisor)
    return affine(step, dividend, scale=1 / divisor.astype(np.float64))

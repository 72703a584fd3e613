"""Divisions by tensors, and roots. One look-up in a function table gives the reciprocal or the root of a number of any magnitude.

The reciprocal is rounded, and then its product with the dividend is rounded. The core flushes subnormals to 0. The reciprocal of
a number above 2^126 is therefore 0, and the quotient of any tensor by this number is 0 too. If the dividend is one constant
number, it is part of the function, so only the quotient may be flushed. Sums have no -0: a / -0 is a / 0.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from ...functions.functions import Function, is_normal
from ...fusion.nodes import Input, Linear, Node
from ..formulas.extents import least
from ..index.values import SymbolicTensor, common
from ..registry import ELEMENTWISE, PARTS, operator
from .activations import apply_function
from .elementwise import affine, broadcast, product
from .expressions import unknown

__all__ = ["divided", "inverse_root"]


def divided(step, dividend, divisor):
    """Returns the quotient `dividend / divisor`. The dividend may be a constant."""
    name, constant = "reciprocal", not isinstance(dividend, SymbolicTensor)
    if isinstance(divisor.source, Root):
        name, divisor = "inverse_root", replace(divisor, source=divisor.source.operand)
    if constant and np.unique(dividend).size == 1 and is_normal(dividend.flat[0]):
        divisor = broadcast(step, divisor, *common(step, dividend, divisor))
        return apply_function(step, divisor, Function(name, (dividend.flat[0],)))
    inverse = apply_function(step, divisor, Function(name))
    return affine(step, inverse, scale=dividend.astype(np.float64)) if constant else product(step, dividend, inverse)


def inverse_root(step, tensor):
    """Returns `1 / sqrt(tensor)`, value by value."""
    return apply_function(step, tensor, Function("inverse_root"))


def _is_input(tensor):
    """Returns True for values of an input, whose sign rounding cannot change: the root is NaN exactly where ONNX's is."""
    return isinstance(tensor.source, Input) and tensor.index.min() >= -1


def _not_negative(tensor):
    """Returns True if no value of a tensor can be negative. Constant padding, the index -1, is 0."""
    return tensor.index.min() >= -1 and least(tensor.source) >= 0


#: The reason why a Log is refused.
_NO_LOG = "no stage computes logarithms, except in functions such as log(1 + exp(x)); cut the model before it"


@dataclass(eq=False, kw_only=True)
class Root(Linear):
    """The node of a square root. `operand` is the node whose values are the operands."""

    operand: Node


@operator("Sqrt", group=ELEMENTWISE, counts_from_end=True)
def square_root(step, tensor):
    """Handles Sqrt of an input, or of a tensor without negative values. For other tensors, Sqrt is supported only as part of a
    recognised function."""
    if not (_not_negative(tensor) or _is_input(tensor)):
        return unknown(step)
    root = apply_function(step, tensor, Function("root"))
    facts = {field.name: getattr(root.source, field.name) for field in fields(root.source)}
    return root.of(Root(**facts, operand=root.source.parts[0].taps[0].source))


_HIGHEST_POWER = 8


@operator("Pow", group=ELEMENTWISE, counts_from_end=True)
def power(step, tensor):
    """Handles whole exponents of magnitude up to 8, square roots and inverse roots. Other powers are supported only as part of a
    recognised function."""
    base, exponent = step.arguments
    if base is not tensor or not isinstance(exponent, np.ndarray) or np.unique(exponent).size != 1:
        return unknown(step)
    if common(step, tensor, exponent)[0] != tensor.dims:
        return unknown(step)
    exponent = float(exponent.flat[0])
    if exponent == 0.5:
        return square_root(step, tensor)
    if exponent == -0.5 and _not_negative(tensor):
        return inverse_root(step, tensor)
    if not 1 <= abs(exponent) <= _HIGHEST_POWER or exponent != int(exponent):
        return unknown(step)
    result = _whole_power(step, tensor, int(abs(exponent)))
    return result if exponent > 0 else divided(step, np.array(1.0), result)


def _whole_power(step, tensor, exponent):
    if exponent == 1:
        return tensor
    half = _whole_power(step, tensor, exponent // 2)
    square = product(step, half, half)
    return product(step, square, tensor) if exponent % 2 else square


@operator("Log", group=PARTS, counts_from_end=True)
def logarithm(step, tensor):
    """Handles Log as part of a function written in several operators."""
    return unknown(step, _NO_LOG)


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

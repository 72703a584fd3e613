"""Formulas (:mod:`sim.functions.formulas`) of the tensors of an ONNX graph, derived operator by operator.

A tensor has a formula over each earlier tensor from which it is computed with scalar constants alone. A constant whose elements
differ ends the formula.
"""

import math

import numpy as np

from ...functions.formulas import DEEPEST, VARIABLE, clipped, constant, formula, largest, least, logarithm, negative
from ...functions.functions import DEFINITIONS, Function, of_operator
from ...fusion.nodes import Unknown
from ..index.values import SymbolicTensor

__all__ = ["ELEMENTS", "TRUTHS", "REDUCTIONS", "formulas_of", "shape_of", "reduced"]

_HIGHEST_POWER = 32


def shape_of(tensor):
    """Returns `(dims, batch axis)`. If the results for two tensors are equal, the values of the two tensors are in the same
    order."""
    return tensor.dims, tensor.batch


def reduced(shape, *axes):
    """Returns the shape after a reduction along axes with keepdims. Returns None if one of the axes is the batch axis."""
    dims, batch = shape
    return None if batch in axes else (tuple(1 if place in axes else size for place, size in enumerate(dims)), batch)


def _elementary(operation):
    return lambda step, *arguments: formula(operation, *arguments)


def _subtract(step, one, two):
    return formula("add", one, negative(two))


def _sum(step, first, *rest):
    for one in rest:
        first = formula("add", first, one)
    return first


def _clip(step, one, *bounds):
    if step.opset < 11:
        bounds = [step.attributes.get(name) for name in ("min", "max")]
    else:
        bounds = [bound and (bound.parameter if bound.operation == "constant" else math.nan) for bound in (*bounds, None, None)]
    low, high = (default if bound is None else bound for bound, default in zip(bounds, (-math.inf, math.inf)))
    return None if math.isnan(low) or math.isnan(high) else clipped(one, low, high)


def _power(step, base, exponent):
    if exponent.operation != "constant":
        if base.operation != "constant" or base.parameter <= 0:
            return None
        return formula("exp", formula("multiply", exponent, constant(math.log(base.parameter))))
    count = exponent.parameter
    if abs(count) == 0.5:
        root = formula("sqrt", base)
        return root if count > 0 else formula("divide", constant(1), root)
    if not 1 <= abs(count) <= _HIGHEST_POWER or count != int(count):
        return None
    power = base if abs(count) == 1 else formula("power", base, parameter=int(abs(count)))
    return power if count > 0 else formula("divide", constant(1), power)


def _function(step, one):
    """Returns the formula of an operator that is one activation function, applied to the formula `one`."""
    definition = of_operator(step.operator, step.attributes)
    parameters = (step.attributes.get(name, value) for name, value in zip(definition.attributes, definition.parameters))
    try:
        return Function(definition.name, tuple(parameters)).formula(one) if definition.formula else None
    except ValueError:  # invalid parameters; the handler refuses them
        return None


#: Elementwise operators: functions of the step and of the formulas of its inputs. They return None if no formula is known.
_NUMBERS = {
    "Add": _elementary("add"),
    "Mul": _elementary("multiply"),
    "Div": _elementary("divide"),
    "Sub": _subtract,
    "Sum": _sum,
    "Max": lambda step, *several: largest(*several),
    "Min": lambda step, *several: least(*several),
    "Neg": _elementary("negative"),
    "Sqrt": _elementary("sqrt"),
    "Log": lambda step, one: logarithm(one),
    "Reciprocal": lambda step, one: formula("divide", constant(1), one),
    "Pow": _power,
    "Clip": _clip,
    **{one.operator: _function for one in DEFINITIONS.values() if one.operator},
    "Greater": _elementary("greater"),
    "GreaterOrEqual": _elementary("at_least"),
    "Less": lambda step, one, two: formula("greater", two, one),
    "LessOrEqual": lambda step, one, two: formula("at_least", two, one),
}

#: Operators whose results are truth values.
TRUTHS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not")
REDUCTIONS = ("ReduceMax", "ReduceSum", "ReduceMean", "ReduceLogSumExp")
_SAME = ("Identity", "Dropout", "Cast", "CastLike")
_SHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Expand")

#: Operators that may be part of a formula.
ELEMENTS = (*_NUMBERS, "Where", "Not", *REDUCTIONS, *_SAME, *_SHAPES)


def formulas_of(step, result):
    """Returns the formulas of the symbolic tensor `result`, which a step computes, as {variable: Formula}. Each variable is an
    earlier SymbolicTensor."""
    # The other inputs of these operators give a shape or a type.
    inputs = step.arguments[:1] if step.operator in (*_SAME, *_SHAPES, *REDUCTIONS) else step.arguments
    tensors = [_roots(value) for value in inputs if isinstance(value, SymbolicTensor)]
    constants = [None if isinstance(value, SymbolicTensor) or value is None else _number(value) for value in inputs]
    if any(have is None and isinstance(value, np.ndarray) for have, value in zip(constants, inputs)):
        return {}
    made, shape = {}, shape_of(result)
    for root in tensors[0]:
        if not all(root in known for known in tensors):
            continue
        known = iter(tensors)
        one = _made(
            step,
            [next(known)[root] if isinstance(value, SymbolicTensor) else number for value, number in zip(inputs, constants)],
            shape,
        )
        if one is not None and one.depth <= DEEPEST:
            made[root] = one
    return made


def _roots(tensor):
    """Returns the formulas of an input tensor. One of the formulas is a variable: the tensor itself, or the tensor whose values a
    chain of nodes only passes on."""
    passed_on = any(one is VARIABLE for one in tensor.formulas.values())
    is_root = not passed_on and not isinstance(tensor.source, Unknown) and not tensor.integer and not tensor.label
    return {**tensor.formulas, tensor: VARIABLE} if is_root else tensor.formulas


def _number(value):
    """Returns a constant tensor as a formula if all elements of the tensor are equal. Otherwise returns None."""
    numbers = np.asarray(value)
    same = numbers.dtype.kind in "fiu" and numbers.size > 0 and (numbers == numbers.flat[0]).all()
    return constant(numbers.flat[0]) if same else None


def _made(step, arguments, shape):
    operator = step.operator
    first = arguments[0]
    if operator in _SAME:
        # A Cast converts a truth value to a number.
        return formula("where", first, constant(1), constant(0)) if first.truth and operator.startswith("Cast") else first
    if operator == "Not":
        return formula("not", first) if first.truth else None
    if operator == "Where":
        truth, *arguments = arguments
        if not truth.truth or any(one.truth for one in arguments):
            return None
        return formula("where", truth, *arguments)
    if any(one and one.truth for one in arguments):
        return None
    if operator in _NUMBERS:
        return _NUMBERS[operator](step, *arguments)
    if operator in _SHAPES:
        if shape == shape_of(step.arguments[0]):
            return first
        return formula("expand" if operator == "Expand" else "reshape", first, parameter=shape)
    return _reduction(step, first)


def _reduction(step, first):
    tensor = step.arguments[0]
    axes, kept = step.integers("axes", 1), step.attributes.get("keepdims", 1)
    axes = sorted({axis % len(tensor.dims) for axis in axes or ()})
    if step.operator == "ReduceMean" and axes:
        return formula(step.operator, first, parameter=(tuple(axes), shape_of(tensor), kept))
    return formula(step.operator, first, parameter=(axes[0], shape_of(tensor), kept)) if len(axes) == 1 else None

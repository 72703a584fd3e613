"""Operators of two or more tensors: residual sums, branches, gates, quotients, extremes and choices."""

import numpy as np
from onnx import TensorProto

from .drawing import block

__all__ = []


def _other(g, x):
    alike = [one for one in g.values if one.shape == x.shape and one != x]
    if alike and g.chance(0.6):
        return g.choose(*alike)
    if len(x.shape) < 3 and g.chance(0.6):
        return g.value("MatMul", x.shape, x, g.weights(x.shape[-1], x.shape[-1], inputs=x.shape[-1]))
    return g.grow(x, "activation")


@block(1, 2, 3, share=2)
def sum_of_two(g, x):
    """Add, Sub, Mul, Sum or Mean of two tensors."""
    operator = g.choose("Add", "Add", "Sub", "Mul", "Sum", "Mean")
    return g.value(operator, x.shape, *g.either_order(x, _other(g, x)))


@block(1, 2, 3)
def arithmetic(g, x):
    """Add, Sub, Mul or Div of a constant: one number, or one for each value of some axes."""
    shape = [size if g.chance(0.5) else 1 for size in x.shape]
    constant = g.normal(*g.choose((), shape, x.shape[-1:]))
    operator = g.choose("Add", "Sub", "Mul", "Div")
    if operator == "Div":
        return g.value("Div", x.shape, x, (np.abs(constant) + np.float32(0.5)).astype(np.float32))
    return g.value(operator, x.shape, *((x, constant) if g.chance(0.7) else (constant, x)))


@block(1, 2, 3)
def branches(g, x):
    """Two branches of the tensor, concatenated."""
    axis = g.integer(0, len(x.shape) - 1)
    one, two = g.grow(x, "activation", "written_function", "clipped"), _other(g, x)
    shape = [2 * size if place == axis else size for place, size in enumerate(x.shape)]
    return g.value("Concat", shape, one, two, axis=g.choose(axis + 1, axis - len(x.shape)))


@block(2, 3, share=1.5)
def squeeze_and_excitation(g, x):
    """Channels times a gate that depends on their means."""
    channels, *sizes = x.shape
    axes = list(range(1, len(x.shape)))
    means = g.summed(x, axes, "ReduceMean") if g.chance(0.5) else g.value("GlobalAveragePool", (channels, *[1] * len(sizes)), x)
    hidden, ones = g.integer(1, 4), [1] * len(sizes)
    made = g.node("Conv", means, g.weights(hidden, channels, *ones, inputs=channels))
    made = g.node("Conv", g.node("Relu", made), g.weights(channels, hidden, *ones, inputs=hidden), g.normal(channels))
    return g.value("Mul", x.shape, x, g.node(g.choose("Sigmoid", "HardSigmoid"), made))


@block(1, 2, 3)
def gate(g, x):
    """The tensor times a function of another one."""
    return g.value("Mul", x.shape, x, g.node(g.choose("Sigmoid", "Tanh", "HardSigmoid"), _other(g, x)))


@block(1, 2, 3)
def quotient(g, x):
    """A quotient by a tensor of positive numbers, or a reciprocal."""
    divisor = g.node("Add", g.node(g.choose("Sigmoid", "Abs", "Relu"), _other(g, x)), np.float32(0.5))
    if g.chance(0.3):
        return g.value("Reciprocal", x.shape, divisor)
    return g.value("Div", x.shape, g.choose(x, np.float32(2)), divisor)


@block(1, 2, 3)
def extreme(g, x):
    """Max or Min of two tensors."""
    return g.value(g.choose("Max", "Min"), x.shape, *g.either_order(x, _other(g, x)))


@block(1, 2, 3)
def choice(g, x):
    """Selects values by truth values of an input, or by the sign of a number."""
    if g.chance(0.6):
        flags = g.input(x.shape[-1], kind=TensorProto.BOOL, rows=2)
        flags = g.node("Not", flags) if g.chance(0.3) else flags
        if g.chance(0.3):
            other = g.input(x.shape[-1], kind=TensorProto.BOOL, rows=2)
            flags = g.node(g.choose("And", "Or", "Xor"), flags, other)
        if len(x.shape) > 1:
            flags = g.node("Unsqueeze", flags, np.arange(1, len(x.shape)))
    else:
        operator, less = g.choose("Greater", "Less", "GreaterOrEqual", "LessOrEqual"), g.node("Mul", x, np.float32(0.25))
        flags = g.node(operator, x, np.float32(0))
        return g.value("Where", x.shape, flags, *((less, x) if operator.startswith("Less") else (x, less)))
    return g.value("Where", x.shape, flags, *g.choose((x, np.float32(0.5)), (x, _other(g, x)), (np.float32(-1), x)))


@block(2)
def masked_rows(g, x):
    """Softmax over positions that an input of truth values or integers allows."""
    count = x.shape[1]
    if g.chance(0.5):
        allowed = g.input(count, kind=TensorProto.BOOL, rows=2)
    else:
        allowed = g.node("Equal", g.input(count, kind=TensorProto.INT64, rows=2), np.array(g.integer(0, 1)))
    allowed = g.node("Unsqueeze", allowed, np.array([1]))
    masked = g.node("Where", allowed, x, np.float32(-1e9))
    return g.value("Softmax", x.shape, masked, axis=-1)

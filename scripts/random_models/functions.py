"""Functions of one number: ONNX' own, and functions written in small operators."""

import numpy as np

from .drawing import block
from .written_functions import FORMS, emitted

__all__ = []

#: {operator: (first opset, attributes to choose from)}
_FUNCTIONS = {
    "Relu": (13, {}),
    "LeakyRelu": (13, {"alpha": (0.01, 0.25)}),
    "Sigmoid": (13, {}),
    "Tanh": (13, {}),
    "Gelu": (20, {"approximate": ("none", "tanh")}),
    "HardSigmoid": (13, {"alpha": (0.2, 1 / 6), "beta": (0.5,)}),
    "HardSwish": (14, {}),
    "Mish": (18, {}),
    "Elu": (13, {"alpha": (1.0, 0.5)}),
    "Selu": (13, {}),
    "Celu": (13, {"alpha": (1.0, 2.0)}),
    "Softplus": (13, {}),
    "Softsign": (13, {}),
    "Abs": (13, {}),
    "Erf": (13, {}),
    "Atan": (13, {}),
    "Sinh": (13, {}),
    "Cosh": (13, {}),
    "Neg": (13, {}),
    "Swish": (24, {"alpha": (1.0, 0.5)}),
}


@block(1, 2, 3, share=3)
def activation(g, x):
    """A function of ONNX."""
    operator = g.choose(*(name for name, (opset, _) in _FUNCTIONS.items() if opset <= g.opset))
    attributes = {name: g.choose(*options) for name, options in _FUNCTIONS[operator][1].items()}
    return g.value(operator, x.shape, x, **attributes)


@block(1, 2, 3)
def written_function(g, x):
    """A function that is written in small operators."""
    form = g.choose(*(form for name in FORMS for form in FORMS[name]))
    return type(x)(emitted(form, x.name, g.node, g.constant, {}), x.shape)


@block(1, 2, 3)
def clipped(g, x):
    """Clip, PRelu, or Max and Min with numbers."""
    kind = g.choose("Clip", "PRelu", "Max", "Min")
    if kind == "Clip":
        low, high = sorted(g.rng.normal(size=2).astype(np.float32))
        bounds = g.choose((low, high), (low,), (None, high), (np.float32(0), np.float32(6)))
        return g.value("Clip", x.shape, x, *bounds)
    if kind == "PRelu":
        shape = g.choose((1,), (x.shape[-1],), (x.shape[0], *[1] * (len(x.shape) - 1)))
        return g.value("PRelu", x.shape, x, np.abs(g.normal(*shape, spread=0.3)))
    return g.value(kind, x.shape, x, np.float32(g.rng.normal()))


@block(1, 2, 3, share=0.7)
def exponential(g, x):
    """Exp of numbers that are not large, or Log(1 + Exp)."""
    made = g.value("Exp", x.shape, g.node(g.choose("Tanh", "Sigmoid"), x))
    return made if g.chance(0.6) else g.value("Log", x.shape, g.node("Add", made, np.float32(1)))


@block(1, 2, 3, share=0.7)
def power(g, x):
    """Pow with a small exponent, or Sqrt of numbers that are not negative."""
    if g.chance(0.4):
        return g.value("Sqrt", x.shape, g.node(g.choose("Abs", "Relu"), x))
    return g.value("Pow", x.shape, g.node("Tanh", x), np.float32(g.choose(2, 3)))

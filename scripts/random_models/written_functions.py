"""Functions that models write in small operators, as expressions.

An expression is "x", a number, or a tuple of an ONNX operator and its operands. Attributes follow the operand.
"""

import numpy as np

__all__ = ["FORMS", "ATTRIBUTES", "emitted"]

ROOT, CUBE = 2**-0.5, 0.044715


def _sigmoid(e):
    return ("Div", 1.0, ("Add", 1.0, ("Exp", ("Neg", e))))


def _hard(*bounds):
    return ("Clip", ("Add", "x", 3.0), *bounds)


#: {name of a function: expressions of it}; None: expressions that are not a function.
FORMS = {
    "gelu": [
        ("Mul", ("Mul", "x", 0.5), ("Add", 1.0, ("Erf", ("Mul", "x", ROOT)))),
        ("Mul", ("Mul", "x", ("Add", ("Erf", ("Div", "x", 2**0.5)), 1.0)), 0.5),
    ],
    "gelu_tanh": [
        ("Mul", ("Mul", "x", 0.5), ("Add", 1.0, ("Tanh", ("Mul", 0.7978845608, ("Add", "x", ("Mul", CUBE, ("Pow", "x", 3.0))))))),
        ("Mul", "x", ("Sigmoid", ("Mul", 1.5957691216, ("Add", "x", ("Mul", ("Mul", ("Mul", "x", "x"), "x"), CUBE))))),
    ],
    "silu": [
        ("Mul", "x", ("Sigmoid", "x")),
        ("Div", "x", ("Add", 1.0, ("Exp", ("Neg", "x")))),
        ("Div", ("Mul", "x", ("Exp", "x")), ("Add", 1.0, ("Exp", "x"))),
        ("Mul", "x", ("Mul", 0.5, ("Add", 1.0, ("Tanh", ("Mul", 0.5, "x"))))),
    ],
    "sigmoid": [
        _sigmoid("x"),
        ("Reciprocal", ("Add", 1.0, ("Exp", ("Neg", "x")))),
        ("Div", ("Exp", "x"), ("Add", ("Exp", "x"), 1.0)),
    ],
    "tanh": [
        ("Div", ("Sub", ("Exp", "x"), ("Exp", ("Neg", "x"))), ("Add", ("Exp", "x"), ("Exp", ("Neg", "x")))),
        ("Sub", ("Div", 2.0, ("Add", 1.0, ("Exp", ("Mul", -2.0, "x")))), 1.0),
    ],
    "mish": [("Mul", "x", ("Tanh", ("Softplus", "x"))), ("Mul", "x", ("Tanh", ("Log", ("Add", 1.0, ("Exp", "x")))))],
    "softplus": [
        ("Log", ("Add", 1.0, ("Exp", "x"))),
        ("Add", ("Relu", "x"), ("Log", ("Add", 1.0, ("Exp", ("Neg", ("Abs", "x")))))),
    ],
    "softsign": [("Div", "x", ("Add", 1.0, ("Abs", "x")))],
    "hard_swish": [
        ("Div", ("Mul", "x", _hard(0.0, 6.0)), 6.0),
        ("Mul", "x", ("HardSigmoid", "x", 1 / 6, 0.5)),
        ("Mul", "x", ("Clip", ("Add", ("Div", "x", 6.0), 0.5), 0.0, 1.0)),
    ],
    "hard_sigmoid": [("Min", ("Max", ("Div", ("Add", ("Abs", ("Add", "x", 3.0)), ("Add", "x", 3.0)), 12.0), 0.0), 1.0)],
    "elu": [
        ("Where", ("Greater", "x", 0.0), "x", ("Sub", ("Exp", "x"), 1.0)),
        ("Add", ("Relu", "x"), ("Mul", 0.5, ("Sub", ("Exp", ("Min", "x", 0.0)), 1.0))),
    ],
    "leaky_relu": [
        ("Max", "x", ("Mul", 0.1, "x")),
        ("Where", ("Less", "x", 0.0), ("Mul", 0.2, "x"), "x"),
        ("Where", ("Less", "x", 0.0), "x", ("Mul", 0.25, "x")),
        ("Sub", ("Relu", "x"), ("Mul", 0.25, ("Relu", ("Neg", "x")))),
    ],
    "clip": [
        ("Where", ("Greater", "x", 200.0), 200.0, "x"),
        ("Sub", "x", ("Relu", ("Sub", "x", 6.0))),
        ("Where", ("LessOrEqual", "x", 0.3), 0.3, ("Min", 127.3, "x")),
    ],
    "abs": [("Max", "x", ("Neg", "x")), ("Sqrt", ("Mul", "x", "x")), ("Add", ("Relu", "x"), ("Relu", ("Neg", "x")))],
    "relu": [("Where", ("Less", "x", 0.0), 0.0, "x"), ("Mul", ("Add", "x", ("Abs", "x")), 0.5)],
    "none": [("Add", ("Div", "x", 3.0), ("Div", ("Mul", "x", 2.0), 3.0)), ("Sub", ("Relu", "x"), ("Relu", ("Neg", "x")))],
}
#: {operator: names of its attributes in an expression}
ATTRIBUTES = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def emitted(e, x, node, constant, made):
    """Appends the nodes of an expression of the tensor `x`. Returns the name of the result.

    Parameters
    ----------
    node, constant : callable
        `node(operator, *inputs, **attributes)` and `constant(array)` append a part of the graph, and return its name.
    made : dict
        Results of expressions that were emitted before; emitted expressions are added.
    """
    if e == "x":
        return x
    if not isinstance(e, tuple):
        return constant(np.float32(e))
    if e not in made:
        names = ATTRIBUTES.get(e[0], ())
        operands = [emitted(operand, x, node, constant, made) for operand in (e[1:2] if names else e[1:])]
        made[e] = node(e[0], *operands, **dict(zip(names, e[2:])))
    return made[e]

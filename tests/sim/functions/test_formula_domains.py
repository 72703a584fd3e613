"""Tests that an expression that is NaN for any input in ONNX is not recognised as a function, however small the range."""

import numpy as np
import pytest

from amaranth_tpu.sim.functions.formulas import VARIABLE
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.functions.proof import proves
from amaranth_tpu.sim.functions.ranges import evaluate
from expressions import FORMS, check, formula_of, show, value
from suites import slow

RELU = ("Relu", "x")


def _far(e):
    return "Add", e, 300.0


#: An expression that is NaN for some numbers, and the function that it equals for all others.
NOT_A_NUMBER = {
    "roots that cancel": ("relu", ("Div", ("Mul", RELU, ("Sqrt", _far("x"))), ("Sqrt", _far("x")))),
    "0 times a logarithm": ("relu", ("Add", RELU, ("Mul", 0.0, ("Log", _far("x"))))),
    "0 times a pole at 0": ("relu", ("Add", RELU, ("Mul", 0.0, ("Log", ("Mul", "x", "x"))))),
    "0 times a pole between bfloat16": ("relu", ("Add", RELU, ("Mul", 0.0, ("Reciprocal", ("Sub", "x", 5.0001))))),
    "0 / 0 at 0": ("none", ("Div", ("Mul", "x", "x"), "x")),
    "0 / 0 between bfloat16": ("relu", ("Div", ("Mul", RELU, ("Sub", "x", 5.0001)), ("Sub", "x", 5.0001))),
    "poles that cancel": ("none", ("Sub", ("Add", "x", ("Log", ("Abs", "x"))), ("Log", ("Abs", "x")))),
    "a logarithm below 1e30": ("none", ("Sub", ("Add", "x", ("Log", ("Sub", "x", 1e30))), ("Log", ("Sub", "x", 1e30)))),
    "root and square": ("relu", ("Pow", ("Sqrt", RELU), 2.0)),
    "root of what overflows": ("relu", ("Add", RELU, ("Mul", 0.0, ("Sqrt", ("Sub", 1e30, ("Exp", "x")))))),
    "the largest of NaN": ("relu", ("Max", RELU, ("Min", 0.0, ("Log", _far("x"))))),
    "a choice by NaN": (
        "relu",
        ("Where", ("Greater", ("Sqrt", ("Mul", ("Sub", "x", 5.0001), ("Sub", "x", 5.0002))), -1.0), RELU, 7.0),
    ),
}


@pytest.mark.parametrize("name", NOT_A_NUMBER)
def test_expression_with_nan_is_not_proven(name):
    function, e = NOT_A_NUMBER[name]
    if name == "root and square":  # never NaN: the root's operand is never negative
        assert proves(formula_of(e), Function(function))
    else:
        assert not proves(formula_of(e), Function(function))


@pytest.mark.parametrize("name", ["roots that cancel", "0 times a logarithm", "0 / 0 between bfloat16"])
def test_model_with_nan_is_refused_or_gives_nan(rng, tmp_path, name):
    """A model whose expression is NaN for some inputs is refused, or gives NaN where onnxruntime does."""
    check(NOT_A_NUMBER[name][1], rng, tmp_path, every=64)


def _inner(rng, c):
    kind = rng.integers(6)
    low, size = ("Sub", "x", c), ("Sub", ("Abs", "x"), abs(c))
    return [low, ("Neg", low), ("Pow", low, 2.0), size, ("Sub", ("Exp", "x"), c), ("Mul", low, "x")][kind]


def _drawn(rng):
    """Returns a function plus a term that is 0 or NaN, as `(expression, function, number near which it is NaN)`."""
    c = float(np.float32(rng.choice([-1, 1]) * 10 ** rng.uniform(-37, 37) if rng.random() < 0.5 else rng.normal() * 100))
    c = 0.0 if rng.random() < 0.1 else c
    name = str(rng.choice(["silu", "softsign", "leaky_relu", "gelu"]))
    e = FORMS[name][0]
    g = _inner(rng, c)
    odd = [("Log", g), ("Sqrt", g), ("Reciprocal", g)][rng.integers(3)]
    kind = rng.integers(3)
    e = [("Add", e, ("Mul", 0.0, odd)), ("Div", ("Mul", e, odd), odd), ("Sub", ("Add", e, odd), odd)][kind]
    return e, Function(name, (0.1,) if name == "leaky_relu" else ()), c


def _is_nan_without_overflow(e, x):
    """Returns True where the expression is NaN in binary64 although no intermediate value exceeds binary32."""
    over = np.zeros(x.shape, bool)

    def watch(values):
        nonlocal over
        over = over | (np.abs(values) > 3e38) & np.isfinite(values)
        return values

    with np.errstate(all="ignore"):
        return np.isnan(np.broadcast_to(value(e, x, watch), x.shape)) & ~over


@pytest.mark.parametrize("trial", [*range(8), *slow(*range(8, 200))])
def test_random_expression_with_nan_is_not_proven(trial, rng):
    """An expression that is NaN somewhere without overflow is not proven to be a function. Expressions without NaN are drawn
    again."""
    for _ in range(100):
        e, function, c = _drawn(rng)
        sizes = np.geomspace(2.0**-126, 3e38, 500).astype(np.float32).astype(float)
        near = np.float32(c) * (1 + np.arange(-3, 4) * 2.0**-24)
        x = np.concatenate([[0.0], sizes, -sizes, near.astype(np.float32), (-near).astype(np.float32)])
        x = x[(np.abs(x) >= 2.0**-126) & (np.abs(x) <= (300 if "Exp" in show(e) else np.inf)) | (x == 0)]  # binary64 has the rest
        if _is_nan_without_overflow(e, x).any():
            break
    else:
        raise AssertionError("no expression with NaN was drawn")
    assert not proves(formula_of(e), function), e


@pytest.mark.parametrize("name, e", [(name, e) for name, forms in FORMS.items() if name for e in forms], ids=str)
def test_overflow_is_no_nan(name, e):
    """A NaN that follows from overflow, such as the NaN of silu for x of 89 or more, does not make an expression undefined,
    because the exact value is a number."""
    x = np.concatenate([[0.0], np.geomspace(2.0**-126, 3e38, 500), -np.geomspace(2.0**-126, 3e38, 500)])
    assert not np.any(evaluate(formula_of(e), x, x).domain.undefined)
    assert not np.any(evaluate(VARIABLE, x, x).domain.undefined)

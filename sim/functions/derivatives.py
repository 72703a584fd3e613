"""Derivatives of the activation functions of :mod:`sim.functions.functions`, in a form that function tables can represent.

At a kink, the derivative of a function jumps. A table is linear between adjacent bfloat16 numbers, so the jump is at the bfloat16
number nearest to the kink. At the kink itself, the derivative is the one on the side away from 0, as for Hardtanh and Hardsigmoid
in PyTorch. LeakyRelu and Abs have PyTorch's derivatives at 0: alpha and 0. For other functions with a kink at 0, zeros share a
table entry with small numbers: +0 has the derivative above 0, -0 the derivative below 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from ml_dtypes import bfloat16

from .functions import Function

__all__ = ["Derivative", "DERIVATIVES", "HELD"]

_FAR = 1e3  # beyond this the derivative is constant, and powers stay finite
_FADED = 64  # e^-x becomes 0 beyond a power of two of at most this size; otherwise no table gets close enough to 0
_LEAST = 2.0**-126  # smaller sums are flushed to 0

_normal = np.vectorize(lambda x: math.erfc(-x * math.sqrt(0.5)) / 2, otypes=[float])


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _fading(x, scale=1.0):
    """Returns e^(x / scale) for float64 numbers. For `scale` above 0, the result is set to 0 beyond a power of two, where it is
    below e^-32."""
    return np.where((scale < 0) | (x > -np.exp2(np.floor(np.log2(_FADED * abs(scale))))), np.exp(x / scale), 0)


def _above(x, kink):
    """Returns True for numbers above `kink`, rounded to bfloat16. The kink itself counts as above if it is positive, and +0
    counts as above a kink at 0."""
    kink = float(np.float32(kink).astype(bfloat16))
    if abs(kink) < _LEAST:
        return ~np.signbit(x)
    return x >= kink if kink > 0 else x > kink


def _between(x, one, two):
    low, high = sorted((one, two))
    return _above(x, low) & ~_above(x, high)


def _hard_sigmoid(x, alpha, beta):
    return np.where(_between(x, -beta / alpha, (1 - beta) / alpha), alpha, 0) if alpha else np.zeros_like(x)


def _gelu_tanh(x):
    x, factor = np.clip(x, -_FAR, _FAR), math.sqrt(8 / math.pi)
    inner = factor * (x + 0.044715 * x**3)
    return _sigmoid(inner) * (1 + x * _sigmoid(-inner) * factor * (1 + 3 * 0.044715 * x**2))


def _mish(x):
    softplus = np.logaddexp(0, x)
    return np.tanh(softplus) + x * _sigmoid(x) / np.cosh(softplus) ** 2


#: The derivative of each function, by the function's name. It is called with float64 numbers and the function's parameters.
DERIVATIVES: dict[str, Callable] = {
    "leaky_relu": lambda x, alpha: np.where(x > 0, 1, alpha),
    "clip": _between,
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
    "tanh": lambda x: np.cosh(x) ** -2,
    "gelu": lambda x: _normal(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
    "gelu_tanh": _gelu_tanh,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x: np.where(_above(x, 3), 1, np.where(_above(x, -3), x / 3 + 0.5, 0)),
    "silu": lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)),
    "mish": _mish,
    "elu": lambda x, alpha: np.where(np.signbit(x), alpha * _fading(x), 1),
    "selu": lambda x, alpha, gamma: gamma * np.where(np.signbit(x), alpha * _fading(x), 1),
    "celu": lambda x, alpha: np.where(np.signbit(x), _fading(x, alpha), 1),
    "softplus": _sigmoid,
    "softsign": lambda x: (1 + np.abs(x)) ** -2,
    "exp": np.exp,
    "abs": np.sign,
    "erf": lambda x: 2 / math.sqrt(math.pi) * np.exp(-(x**2)),
    "atan": lambda x: 1 / (1 + x**2),
    "sinh": np.cosh,
    "cosh": np.sinh,
}

#: Derivatives that decay like a power of x, over more binades than a table has: {name: abs(x) beyond which the derivative is
#: constant}.
HELD = {"softsign": 2.0**6, "atan": 2.0**6}


@dataclass(frozen=True)
class Derivative:
    """The derivative of an activation function, with the interface that :func:`sim.golden.function_tables.table_of` needs."""

    function: Function  # one of the functions in :data:`DERIVATIVES`
    is_table: ClassVar = True
    scale: ClassVar = 0

    def __str__(self):
        return f"the derivative of {self.function}"

    @property
    def key(self):
        return "derivative", *self.function.key

    def exact(self, x):
        """Returns the derivative at float64 numbers, which may be infinite."""
        most = HELD.get(self.function.name, 1e300)
        with np.errstate(all="ignore"):
            values = DERIVATIVES[self.function.name](np.clip(x, -most, most), *self.function.parameters)
            return np.asarray(values, float)

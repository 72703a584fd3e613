"""The activation functions of stages. Each has one record, from which all lists of functions are made.

The record defines the function in float64. The core evaluates the function by a lookup table (:mod:`sim.golden.function_tables`).
The ONNX reader recognises a function by its operator, or by small operators that are equivalent to its formula.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .formulas import clipped, constant, cut_below, formula, largest, line, product
from .probes import LARGEST, NEAR

__all__ = ["Definition", "DEFINITIONS", "Function", "NONE", "RELU", "is_normal", "of_operator"]

_each = functools.partial(np.vectorize, otypes=[float])


@dataclass(frozen=True, eq=False, kw_only=True)
class Definition:
    """The definition of an activation function."""

    name: str
    #: Callable. `exact(x, *parameters)` returns the values at a float64 array. Values at infinity equal the values at 1e300.
    exact: Callable
    parameters: tuple = ()  # Tuple of float. Default values of the parameters, as in ONNX.
    #: `are_valid(*parameters)` returns True if the function exists for these parameters. None: it exists for all numbers.
    are_valid: Callable | None = None
    #: `formula(x, *parameters)` returns the function of a :class:`sim.functions.formulas.Formula`, used to recognise chains of
    #: small operators. None: chains are not recognised.
    formula: Callable | None = None
    #: `solve(probes)` returns the parameters for a formula with these values (:class:`sim.functions.probes.Probes`), assuming it
    #: is this function. Recognition needs it if the function has parameters.
    solve: Callable | None = None
    #: Bool or callable of the parameters. True if the function is monotone, so that it commutes with max pooling.
    monotone: object = False
    operator: str = ""  # ONNX operator that computes this function, or ""
    attributes: tuple = ()  # Tuple of str. Attributes of the operator that hold the parameters, in the order of the parameters.
    #: Attribute values that select this function, for an operator that computes several functions.
    choice: dict = field(default_factory=dict)
    built_in: bool = False  # True if the core computes the function without a table
    example: tuple = ()  # Tuple of float. Parameters used in the datasheet and in tests.
    #: Field `scale` of LOAD_TABLE whose power of x is the function, or NaN for negative x. 0: the function is not a power.
    scale: int = 0


def _none_is_negative(*parameters):
    return all(value >= 0 for value in parameters)


def is_normal(value):
    """Returns True for numbers that are normal in binary32."""
    return 2.0**-126 <= abs(value) < 2.0**128


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _expm1(x):
    return formula("expm1", x)


def _gelu_tanh(x):
    cubic = product(constant(0.044715), formula("power", x, parameter=2))
    inner = product(x, formula("add", constant(1), cubic))
    return product(x, formula("sigmoid", product(constant((8 / 3.141592653589793) ** 0.5), inner)))


#: The record of each activation function, by name.
DEFINITIONS = {
    one.name: one
    for one in (
        Definition(name="none", exact=lambda x: x, formula=lambda x: x, monotone=True, built_in=True),
        Definition(
            name="relu",
            exact=lambda x: np.maximum(x, 0),
            formula=lambda x: largest(x, constant(0)),
            monotone=True,
            operator="Relu",
            built_in=True,
        ),
        Definition(
            name="leaky_relu",
            parameters=(0.01,),
            exact=lambda x, alpha: np.where(x < 0, alpha * x, x),
            formula=lambda x, alpha: cut_below(x, alpha, lambda below: below),
            solve=lambda at: (-at.minus_one,),
            monotone=_none_is_negative,
            operator="LeakyRelu",
            attributes=("alpha",),
        ),
        Definition(
            name="clip",
            parameters=(-math.inf, math.inf),
            exact=np.clip,
            are_valid=lambda low, high: low <= high,
            formula=clipped,
            monotone=True,
            example=(0, 6),
            solve=lambda at: (
                -math.inf if at.lowest <= -LARGEST / 2 else at.lowest,
                math.inf if at.highest >= LARGEST / 2 else at.highest,
            ),
        ),
        Definition(name="sigmoid", exact=_sigmoid, formula=lambda x: formula("sigmoid", x), monotone=True, operator="Sigmoid"),
        Definition(name="tanh", exact=np.tanh, formula=lambda x: formula("tanh", x), monotone=True, operator="Tanh"),
        Definition(
            name="gelu",
            exact=lambda x: x * 0.5 * _each(math.erfc)(-x * math.sqrt(0.5)),
            formula=lambda x: product(x, formula("normal", x)),
            operator="Gelu",
        ),
        Definition(
            name="gelu_tanh",
            exact=lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
            formula=_gelu_tanh,
            operator="Gelu",
            choice={"approximate": b"tanh"},
        ),
        Definition(
            name="hard_sigmoid",
            parameters=(0.2, 0.5),
            exact=lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
            formula=lambda x, alpha, beta: clipped(line(x, alpha, beta), 0, 1),
            monotone=_none_is_negative,
            solve=lambda at: ((at.right - at.left) / (2 * NEAR), at.zero),
            operator="HardSigmoid",
            attributes=("alpha", "beta"),
        ),
        Definition(
            name="hard_swish",
            exact=lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
            formula=lambda x: product(x, clipped(line(x, 1 / 6, 0.5), 0, 1)),
            operator="HardSwish",
        ),
        Definition(name="silu", exact=lambda x: x * _sigmoid(x), formula=lambda x: product(x, formula("sigmoid", x))),
        Definition(
            name="mish",
            exact=lambda x: x * np.tanh(np.logaddexp(0, x)),
            formula=lambda x: product(x, formula("tanh", formula("softplus", x))),
            operator="Mish",
        ),
        Definition(
            name="elu",
            parameters=(1.0,),
            exact=lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
            formula=lambda x, alpha: cut_below(x, alpha, _expm1),
            solve=lambda at: (at.minus_one / np.expm1(-1),),
            monotone=_none_is_negative,
            operator="Elu",
            attributes=("alpha",),
        ),
        Definition(
            name="selu",
            parameters=(1.67326319217681884765625, 1.05070102214813232421875),
            exact=lambda x, alpha, gamma: gamma * np.where(x < 0, alpha * np.expm1(x), x),
            formula=lambda x, alpha, gamma: product(constant(gamma), cut_below(x, alpha, _expm1)),
            solve=lambda at: (at.minus_one / np.expm1(-1) / at.one, at.one),
            operator="Selu",
            attributes=("alpha", "gamma"),
        ),
        Definition(
            name="celu",
            parameters=(1.0,),
            exact=lambda x, alpha: np.where(x < 0, alpha * np.expm1(x / alpha), x),
            are_valid=lambda alpha: alpha != 0,
            monotone=True,
            operator="Celu",
            attributes=("alpha",),
            formula=lambda x, alpha: cut_below(x, alpha, lambda below: _expm1(product(constant(1 / alpha), below))),
        ),
        Definition(
            name="softplus",
            exact=lambda x: np.logaddexp(0, x),
            formula=lambda x: formula("softplus", x),
            monotone=True,
            operator="Softplus",
        ),
        Definition(
            name="softsign",
            exact=lambda x: x / (1 + np.abs(x)),
            formula=lambda x: formula("softsign", x),
            monotone=True,
            operator="Softsign",
        ),
        Definition(name="exp", exact=np.exp, formula=lambda x: formula("exp", x), monotone=True, operator="Exp"),
        Definition(name="abs", exact=np.abs, formula=lambda x: formula("absolute", x), operator="Abs"),
        Definition(name="erf", exact=_each(math.erf), formula=lambda x: formula("erf", x), monotone=True, operator="Erf"),
        Definition(name="atan", exact=np.arctan, monotone=True, operator="Atan"),
        Definition(name="sinh", exact=np.sinh, monotone=True, operator="Sinh"),
        Definition(name="cosh", exact=np.cosh, operator="Cosh"),
        # Powers of numbers of all sizes. The roots of negative numbers are NaN; the roots of -0 have its sign.
        Definition(name="root", exact=np.sqrt, scale=1),
        Definition(name="reciprocal", parameters=(1.0,), exact=lambda x, dividend: dividend / x, are_valid=is_normal, scale=2),
        Definition(
            name="inverse_root", parameters=(1.0,), exact=lambda x, dividend: dividend / np.sqrt(x), are_valid=is_normal, scale=3
        ),
    )
}


def attributes_of(operator):
    """Returns the names of the attributes of an ONNX operator from which the records read parameters or choices."""
    fitting = (one for one in DEFINITIONS.values() if one.operator == operator)
    return tuple(dict.fromkeys(name for one in fitting for name in (*one.attributes, *one.choice)))


def of_operator(operator, attributes):
    """Returns the :class:`Definition` of an ONNX operator with these attributes, or None."""
    fitting = [one for one in DEFINITIONS.values() if one.operator == operator and one.choice.items() <= attributes.items()]
    return max(fitting, key=lambda one: len(one.choice), default=None)


@dataclass(frozen=True, eq=False)
class Function:
    """An activation function: a name and parameters. Default parameters: ONNX's defaults. Raises ValueError if the name is
    unknown, the number of parameters is wrong, or a parameter is NaN."""

    name: str
    parameters: tuple = ()

    def __post_init__(self):
        if self.name not in DEFINITIONS:
            raise ValueError(f"activation function must be one of {', '.join(DEFINITIONS)}, not {self.name!r}")
        usual, are_valid = self.definition.parameters, self.definition.are_valid
        given = tuple(float(value) for value in self.parameters)
        if len(given) > len(usual):
            raise ValueError(f"{self.name} takes {len(usual)} parameters, not {len(given)}")
        every = given + usual[len(given) :]
        if any(map(math.isnan, given)) or are_valid and not are_valid(*every):
            raise ValueError(f"{self.name} cannot have the parameters {given}")
        object.__setattr__(self, "parameters", every)

    def __str__(self):
        return self.name + (f"({', '.join(f'{value:g}' for value in self.parameters)})" if self.parameters else "")

    @property
    def key(self):
        """Returns a hashable identity of the function. It distinguishes -0.0 from 0.0, since the signs of results may differ."""
        return self.name, tuple(map(float.hex, self.parameters))

    def __eq__(self, other):
        return isinstance(other, Function) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    @property
    def definition(self):
        return DEFINITIONS[self.name]

    @property
    def is_table(self):
        """Returns True if the core evaluates the function by a table."""
        return not self.definition.built_in

    @property
    def scale(self):
        """Field `scale` of its table."""
        return self.definition.scale

    @property
    def is_monotone(self):
        """Returns True if the function is monotone, so that it preserves the order of numbers."""
        monotone = self.definition.monotone
        return monotone(*self.parameters) if callable(monotone) else monotone

    def exact(self, x):
        """Returns the function's values at float64 numbers, which may be infinite."""
        with np.errstate(all="ignore"):
            return np.asarray(self.definition.exact(np.clip(x, -1e300, 1e300), *self.parameters), float)

    def formula(self, x):
        """Applies the function to a formula `x`. Returns a :class:`sim.functions.formulas.Formula`."""
        return self.definition.formula(x, *self.parameters)


NONE, RELU = Function("none"), Function("relu")

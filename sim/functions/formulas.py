"""Formulas: expressions of one tensor, stored as directed graphs of elementary operations.

Formulas are built with :data:`VARIABLE`, :func:`constant` and :func:`formula`. :mod:`sim.functions.ranges` computes bounds of a
formula over ranges of the variable. :mod:`sim.functions.proof` proves that a formula equals an activation function of the core.
"""

from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b

__all__ = [
    "Formula",
    "VARIABLE",
    "DEEPEST",
    "constant",
    "formula",
    "negative",
    "least",
    "largest",
    "clipped",
    "cut_below",
    "logarithm",
    "product",
    "line",
    "parts_of",
]

#: Largest depth of a formula. The longest form of a known function that exporters write is a chain of 10 operations.
DEEPEST = 16

#: Elementwise operations.
_ELEMENTARY = (
    "variable",
    "constant",
    "add",
    "multiply",
    "divide",
    "negative",
    "absolute",
    "largest",
    "least",
    "power",
    "exp",
    "expm1",
    "log",
    "sqrt",
    "erf",
    "normal",
    "tanh",
    "sigmoid",
    "softplus",
    "softsign",
    "where",
    "greater",
    "at_least",
    "not",
)
_TRUTHS = ("greater", "at_least", "not")


@dataclass(frozen=True, eq=False)
class Formula:
    """An operation and its arguments, which are formulas.

    Attributes
    ----------
    key : bytes
        Hash of the expression. Formulas with equal keys are equal.
    depth : int
        Length of the longest chain of operations.
    even : bool
        True if the formula is elementwise: each result depends only on the element of the variable at the same position.
    truth : bool
        True if the result is a boolean, not a number.
    """

    operation: str  # one of `_ELEMENTARY`, or an operation that is not elementwise
    arguments: tuple = ()
    #: The value of a `constant`, or the exponent (int) of a `power`. For other operations, a value that distinguishes different
    #: operations of the same name.
    parameter: object = None
    key: bytes = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)
    even: bool = field(init=False, repr=False)
    truth: bool = field(init=False, repr=False)

    def __post_init__(self):
        digest = blake2b(repr((self.operation, self.parameter)).encode(), digest_size=16)
        for argument in self.arguments:
            digest.update(argument.key)
        facts = {
            "key": digest.digest(),
            "depth": 1 + max((argument.depth for argument in self.arguments), default=-1),
            "even": self.operation in _ELEMENTARY and all(argument.even for argument in self.arguments),
            "truth": self.operation in _TRUTHS,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other):
        return isinstance(other, Formula) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


VARIABLE = Formula("variable")


def formula(operation, *arguments, parameter=None):
    return Formula(operation, arguments, parameter)


def constant(value):
    return Formula("constant", (), float(value))


def negative(one):
    return formula("negative", one)


def least(*several):
    return reduce(lambda one, two: formula("least", one, two), several)


def largest(*several):
    return reduce(lambda one, two: formula("largest", one, two), several)


def clipped(one, low, high):
    return least(largest(one, constant(low)), constant(high))


def cut_below(one, slope, below):
    """Returns a formula with the value `one` where `one` is positive, and the value `slope * below(one)` elsewhere. `below(0)`
    must be 0."""
    zero = constant(0)
    return formula("add", largest(one, zero), formula("multiply", constant(slope), below(least(one, zero))))


def logarithm(one):
    """Returns the formula log(one). log(1 + exp(x)) becomes softplus(x), which is the same number without overflow of exp."""
    if one.operation == "add":
        kinds = {argument.operation: argument for argument in one.arguments}
        if "exp" in kinds and "constant" in kinds and kinds["constant"].parameter == 1:
            return formula("softplus", kinds["exp"].arguments[0])
    return formula("log", one)


def product(one, two):
    return formula("multiply", one, two)


def line(one, slope, shift):
    return formula("add", product(one, constant(slope)), constant(shift))


def parts_of(whole):
    """Returns the set of all subexpressions of a formula, including the formula itself."""
    found, left = set(), [whole]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += one.arguments
    return found

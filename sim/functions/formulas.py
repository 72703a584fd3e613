"""Formulas: what a few operators in a row make of one tensor, as a directed graph of elementary operations.

A formula says which number is made of which. It is built from :func:`variable`, :func:`constant` and :func:`formula`; what it
is worth over ranges of the variable is told by :mod:`sim.functions.ranges`, whether it is one of the core's functions by
:mod:`sim.functions.proof`.
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

#: Operations one behind the other that are followed; the longest known form of a function that exporters write has 10.
DEEPEST = 16

#: Operations on one number each, or on several in the same place.
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
    """An operation on the results of others.

    Parameters
    ----------
    operation : str
        One of `_ELEMENTARY`, or an operation that is not element by element.
    arguments : tuple of Formula
    parameter
        Of `constant` its value, of `power` its exponent, an int; of others what tells two operations from each other.

    Attributes
    ----------
    key : bytes
        The same for the same formula: formulas are equal if these are.
    depth : int
        Operations one behind the other.
    even : bool
        Whether each number is made of the variable's number in the same place alone.
    truth : bool
        Whether it is true or false, not a number.
    """

    operation: str
    arguments: tuple = ()
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
    """`one` where it is positive, else `slope` times `below(one)`, which is 0 at 0."""
    zero = constant(0)
    return formula("add", largest(one, zero), formula("multiply", constant(slope), below(least(one, zero))))


def logarithm(one):
    """log(one); log(1 + exp(x)) as softplus(x), which is the same number, and does not overflow on the way."""
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
    """Returns the set of all formulas that a formula is made of, itself included."""
    found, left = set(), [whole]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += one.arguments
    return found

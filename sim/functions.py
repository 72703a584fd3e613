"""The activation functions, each defined once: in float64, as a table of bfloat16, and as the core applies it.

The function of a bfloat16 with sign s, biased exponent E and fraction M is read from a table of 4,096 bfloat16 that holds
16 binades of either sign, from the exponent `first` on: `table[s << 11 | (e - first) << 7 | M]`, e being E brought into
these binades. Outside them the function keeps the value of the nearest one, or goes on in proportion: where bit s of
`linear_low`, respectively `linear_high`, is 1, the exponent of what was read is raised by E - e, and E = 0 gives 0. That is enough for
every function which is flat or a straight line through 0 at either end of either side.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from hw.isa import TABLE_ENTRIES

from .golden import NAN_BFLOAT16, activate, to_bfloat16

__all__ = ["Function", "NONE", "RELU", "Table", "apply", "lookup", "errors"]

BINADES = 16
_LARGEST = 2.0 ** 128 - 2.0 ** 119      # from here on a number rounds to infinity
_LEAST = 2.0 ** -126                    # below, a result is 0
_each = functools.partial(np.vectorize, otypes=[float])


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x):
    return x * 0.5 * _each(math.erfc)(-x * math.sqrt(0.5))


def _gelu_tanh(x):
    return x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x ** 3))


#: name: (values of the parameters that are not given, function of float64). Its limits at infinity are its values at 1e300.
_DEFINITIONS = {
    "none": ((), lambda x: x),
    "relu": ((), lambda x: np.maximum(x, 0)),
    "leaky_relu": ((0.01,), lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "clip": ((-math.inf, math.inf), np.clip),
    "sigmoid": ((), _sigmoid),
    "tanh": ((), np.tanh),
    "gelu": ((), _gelu),
    "gelu_tanh": ((), _gelu_tanh),
    "hard_sigmoid": ((0.2, 0.5), lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "hard_swish": ((), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "silu": ((), lambda x: x * _sigmoid(x)),
    "mish": ((), lambda x: x * np.tanh(np.logaddexp(0, x))),
    "elu": ((1.0,), lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x)),
    "selu": ((1.6732632423543772, 1.0507009873554805),
             lambda x, alpha, gamma: gamma * np.where(x < 0, alpha * np.expm1(x), x)),
    "softplus": ((), lambda x: np.logaddexp(0, x)),
    "softsign": ((), lambda x: x / (1 + np.abs(x))),
    "exp": ((), np.exp),
    "abs": ((), np.abs),
    "erf": ((), _each(math.erf)),
}


@dataclass(frozen=True)
class Table:
    """What LOAD_TABLE puts into the core: `first`, `linear_low`, `linear_high`, and the `entries`, uint16."""

    first: int
    linear_low: int
    linear_high: int
    entries: np.ndarray

    def __iter__(self):
        return iter((self.first, self.linear_low, self.linear_high, self.entries))


@dataclass(frozen=True)
class Function:
    """An activation function by its name, and its parameters; those not given have ONNX' values.

    Raises
    ------
    ValueError
        For an unknown name, a wrong count of parameters, or one that is no number.
    """

    name: str
    parameters: tuple = ()

    def __post_init__(self):
        if self.name not in _DEFINITIONS:
            raise ValueError(f"activation function must be one of {', '.join(_DEFINITIONS)}, not {self.name!r}")
        usual, _ = _DEFINITIONS[self.name]
        given = tuple(float(value) for value in self.parameters)
        if len(given) > len(usual):
            raise ValueError(f"{self.name} takes {len(usual)} parameters, not {len(given)}")
        if any(map(math.isnan, given)) or self.name == "clip" and (given + usual[len(given):])[0] > (given + usual[len(given):])[1]:
            raise ValueError(f"{self.name} cannot have the parameters {given}")
        object.__setattr__(self, "parameters", given + usual[len(given):])

    def __str__(self):
        return self.name + (f"({', '.join(f'{value:g}' for value in self.parameters)})" if self.parameters else "")

    @property
    def is_table(self):
        """Whether the core reads it from its table."""
        return self.name not in ("none", "relu")

    def exact(self, x):
        """The function of float64 numbers, infinities included."""
        with np.errstate(all="ignore"):
            return np.asarray(_DEFINITIONS[self.name][1](np.clip(x, -1e300, 1e300), *self.parameters), float)

    def table(self):
        """The table with the least error over all inputs: unpacks as `(first, linear_low, linear_high, entries)`.

        Raises
        ------
        ValueError
            When no 16 binades serve: the error would be more than one unit in the last place.
        """
        return _table(self)


NONE, RELU = Function("none"), Function("relu")


def lookup(bits, table):
    """The rule of the table on bfloat16 bits, as the core has it."""
    first, linear_low, linear_high, entries = table
    bits = np.asarray(bits, np.uint16).astype(np.int64)
    sign, exponent, fraction = bits >> 15, bits >> 7 & 0xFF, bits & 0x7F
    within = np.clip(exponent, first, first + BINADES - 1)
    found = np.asarray(entries, np.uint16).astype(np.int64)[sign << 11 | within - first << 7 | fraction]
    linear = np.where(exponent < within, linear_low, linear_high) >> sign & 1
    found = _raise_exponent(found, np.where(linear & (exponent != within), np.where(exponent == 0, -255, exponent) - within, 0))
    return np.where((exponent == 0xFF) & (fraction != 0), NAN_BFLOAT16, found).astype(np.uint16)


def _raise_exponent(bits, shift):
    """bfloat16 bits (int64) with another exponent: 0 when it is too small, infinite when it is too large."""
    raised = (bits >> 7 & 0xFF) + shift
    value = np.where(raised <= 0, 0, np.where(raised >= 0xFF, 0x7F80, raised << 7 | bits & 0x7F))
    return np.where((shift == 0) | (bits & 0x7FFF == 0), bits, bits & 0x8000 | value)


def apply(function, sums):
    """The function of float32 sums as the core has it, before the last rounding: of binary32 for `none` and `relu`, else of
    bfloat16 by the table."""
    if not function.is_table:
        return activate(sums, function.name)
    bits = np.asarray(to_bfloat16(np.ascontiguousarray(sums, np.float32).view(np.uint32)))
    return (lookup(bits, function.table()).astype(np.uint32) << 16).view(np.float32)


# --- Tables -------------------------------------------------------------------------------------------------------

def _numbers(bits):
    """float64 of bfloat16 bits."""
    with np.errstate(invalid="ignore"):     # NaNs
        return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)


def _rounded(values):
    """float64 -> bfloat16 bits: to nearest, ties to even; what is less than the least normal number is 0."""
    fraction, exponent = np.frexp(values)
    with np.errstate(over="ignore"):
        values = np.where(np.isfinite(values), np.ldexp(np.rint(fraction * 256), exponent - 8), values)
        values = np.where(np.abs(values) < _LEAST, np.copysign(0, values), values)
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.int64)


def _ulps(found, exact):
    """Distance of bfloat16 bits from float64 numbers, in units in the last place of these; infinite where one is infinite in
    bfloat16 and the other not. What flushing makes 0 is 0."""
    found, size = _numbers(found), np.abs(exact)
    with np.errstate(all="ignore"):
        unit = np.ldexp(1.0, np.where(size < _LEAST, -126, np.frexp(size)[1] - 1) - 7)
        distance = np.abs(found - exact) / unit
        distance = np.where((size < _LEAST) & (found == 0), 0, distance)
        return np.where(size >= _LARGEST, np.where(found == np.copysign(np.inf, exact), 0, np.inf), distance)


def _inputs():
    """All bfloat16 but NaNs, [sign, exponent, fraction], as float64; subnormals are 0."""
    bits = np.arange(1 << 16).reshape(2, 256, 128)
    return _numbers(np.where(bits & 0x7F80, bits, bits & 0x8000)), ~((bits & 0x7F80 == 0x7F80) & (bits & 0x7F != 0))


def errors(function, found):
    """Errors in units in the last place of the exact value, of `found`, the bfloat16 bits for all 65,536 inputs; 0 at NaNs."""
    x, number = _inputs()
    return np.where(number, _ulps(np.asarray(found).reshape(x.shape), function.exact(np.where(number, x, 0))), 0).ravel()


@functools.lru_cache(maxsize=64)
def _table(function):
    x, number = _inputs()
    exact = function.exact(np.where(number, x, 0))
    rounded = _rounded(exact)

    def serve(sign, edge, beyond, linear, fractions):
        """Largest error, and the entries of binade `edge`, when they serve the binades `beyond` too. An entry is the rounded
        value, or next to it if that is better."""
        candidates = np.clip(rounded[sign, edge, fractions] + np.array([0, -1, 1])[:, None], 0, 0xFFFF)
        places = np.array([edge, *beyond])
        shift = np.where(places == 0, -255, places) - edge
        found = _raise_exponent(candidates[:, None], (shift * (linear & (places != edge)))[:, None])
        distance = _ulps(found, exact[sign, places][:, fractions])
        distance = np.where(number[sign, places][:, fractions], distance, 0).max(axis=1)      # [candidate, fraction]
        best = np.nan_to_num(distance, nan=np.inf).argmin(axis=0)[None]
        return np.take_along_axis(distance, best, 0).max(), linear, np.take_along_axis(candidates, best, 0)[0]

    def ends(first, fractions):
        """Of the table from `first` on, for both ends and both signs, what serves better: the value, or going on."""
        last = first + BINADES - 1
        return [[min((serve(sign, edge, beyond, linear, fractions) for linear in (0, 1)), key=lambda one: one[0])
                 for sign in (0, 1)] for edge, beyond in ((first, range(first)), (last, range(last + 1, 256)))]

    def error(both):
        return max(one[0] for end in both for one in end)

    # A few fractions give a lower bound of the error; from the least bound on, all of them, until no other can be better.
    bounds = sorted((error(ends(first, np.array([0, 1, 64, 127]))), first) for first in range(256 - BINADES + 1))
    least, chosen = np.inf, None
    for bound, first in bounds:
        if bound >= least:
            break
        both = ends(first, np.arange(128))
        if error(both) < least:
            least, chosen = error(both), (first, both)
    if least > 1:
        raise ValueError(f"{function} does not fit the function table: with the best 16 binades the error is {least:.4g} units "
                         "in the last place")
    first, (low, high) = chosen
    entries = rounded[:, first:first + BINADES].copy()
    entries[:, 0], entries[:, -1] = [one[2] for one in low], [one[2] for one in high]
    entries = entries.astype(np.uint16).reshape(TABLE_ENTRIES)
    entries.flags.writeable = False
    return Table(first, *(one[0][1] | one[1][1] << 1 for one in (low, high)), entries)

"""Recognition of expressions that a model writes in several small operators: activation functions, and softmax.

`x * 0.5 * (1 + erf(x / sqrt(2)))` and its variants are recognised by their values, so neither the order nor the grouping of
operators matters. The expression is evaluated at probes, numbers of all magnitudes, to select a candidate function.
:mod:`sim.functions.proof` then proves that the expression equals the function. Softmax is recognised by its structure.
"""

import contextlib
import functools
from dataclasses import replace
from math import prod

import numpy as np

from ...functions.functions import DEFINITIONS, NONE, RELU, Function, is_normal
from ...functions.probes import FEW, PROBES, special
from ...functions.proof import agrees, jump, proof
from ...functions.ranges import evaluate
from ...functions.slopes import Slopes
from ...fusion.composed import bounds
from ...fusion.nodes import Unknown
from ..formulas.softmax import shares
from ..formulas.tensor_formulas import TRUTHS, formulas_of, shape_of
from ..index.values import SymbolicTensor, common, limited, reduction
from .activations import apply_function
from .elementwise import affine
from .softmax import softmax

__all__ = ["MOST_PROOFS", "limited_proofs", "unknown", "recognise", "recognise_slopes"]

#: Work limit of all proofs for one model, in the unit of :data:`sim.functions.proof.MOST_WORK`. Operators whose proofs exceed it
#: are computed one by one.
MOST_PROOFS = 1 << 24

_ALWAYS = 8  # a function must be a number at arguments up to this magnitude
_REMEMBERED = 1 << 13  # size limit of the cache below
_known = {}  # cache: ranges of formulas at the probes


class _Share:
    """The proof budget of one model. `left` is the remaining work. `paid` has the formulas whose work has been subtracted from
    `left`. These formulas were proved for this model or found in the cache."""

    def __init__(self):
        self.left, self.paid = MOST_PROOFS, set()


_share = _Share()


@contextlib.contextmanager
def limited_proofs():
    """Starts a new proof budget, for the model that is read inside the `with` block."""
    global _share
    _share = _Share()
    yield


def unknown(step, why=""):
    """Returns a tensor with a known shape and unknown values for a node that no stage computes. The tensor may be part of a
    function that is recognised later. `why` is the reason in a later error message if the formulas of the tensor give no reason.
    """
    values = [value for value in step.arguments if value is not None]
    tensors = [value for value in values if isinstance(value, SymbolicTensor)]
    if step.operator.startswith("Reduce"):
        _, dims, batch = reduction(step, tensors[0])
    else:
        dims, batch = common(step, *values)
    size = prod(dims)
    limited(step, size)
    before = [tensor.source for tensor in tensors if isinstance(tensor.source, Unknown)]
    fault = next((one.fault or one for one in before if one.fault or not one.truth), None)
    source = Unknown(**step.titles, shape=(1, 1, size), truth=step.operator in TRUTHS, fault=fault)
    tensor = SymbolicTensor(dims, source, np.arange(size), batch, tensors[0].samples, tensors[0].outer)
    formulas = formulas_of(step, tensor)
    source.why = functools.partial(_why, list(formulas.values()), why)
    return replace(tensor, formulas=formulas)


def _why(formulas, why):
    """Returns the reason, for an error message, why a tensor with these formulas is not a function of the core. Returns `why` if
    no reason is found."""
    if _share.left <= 0:
        return "the model has too many different expressions to prove each; export its functions as ONNX operators"
    for formula in sorted(formulas, key=lambda one: one.depth):
        if formula.even and not formula.truth and formula.operation != "log":
            wrong = PROBES[np.isnan(_at_probes(formula).low) & (np.abs(PROBES) <= _ALWAYS)]
            if wrong.size:
                return f"it is not a number at {wrong[np.abs(wrong + 1).argmin()]:.7g}; add a Clip before it"
        place = jump(formula) if formula.even and not formula.truth else None
        if place is not None:
            return f"it jumps at {place:.7g}, and the core's functions have no jumps; cut the model before it"
    return why


def recognise(step, tensor):
    """Tries to express the result of a step as one activation function, or as a softmax, of an earlier tensor. Returns this
    function of the earlier tensor. Returns None if there is no such function."""
    for root, formula in sorted(tensor.formulas.items(), key=lambda one: -one[1].depth):  # longest formula first
        if shape_of(root) != shape_of(tensor) or formula.truth:
            continue
        if formula.even:
            function = _affordable(formula)
            if function is not None:
                return apply_function(step, root, function)
            continue
        found = shares(formula, shape_of(root))
        if found is not None:
            kind, axis = found
            return softmax(replace(step, attributes={"axis": axis}, opset=13), root, kind)
    return None


def recognise_slopes(step, tensor):
    """Tries to express the result of a step as a LeakyRelu of a scaled earlier tensor, such as Where(x < 0, x, x / 4), which is
    LeakyRelu of x / 4 with alpha 4. Returns the result, or None."""
    for root, formula in sorted(tensor.formulas.items(), key=lambda one: -one[1].depth):
        slopes = _affordable(formula, _slopes) if formula.even and shape_of(root) == shape_of(tensor) else None
        before, alpha, after = slopes.factors if slopes else (1.0, np.inf, 1.0)
        if alpha == 0 or is_normal(alpha):
            function = {0: RELU, 1: NONE}.get(alpha) or Function("leaky_relu", (alpha,))
            result = apply_function(step, affine(step, root, scale=np.array(before)), function)
            return result if after == 1 else affine(step, result, scale=np.array(after))
    return None


def _affordable(formula, function_of=None):
    """Returns the activation function that an elementwise formula computes, by :func:`_function` or another search. Returns None
    if there is no such function, or if the proof budget is used up."""
    if _share.left <= 0:
        return None
    function, work = (function_of or _function)(formula)
    if formula not in _share.paid:
        _share.paid.add(formula)
        _share.left -= work
    return function


@functools.lru_cache(maxsize=4096)
def _function(formula):
    """Returns `(function, work)`. `function` is the activation function that an elementwise formula computes, or None. `work` is
    the work of the proofs, in the unit of `MOST_PROOFS`."""
    found, total = _at_probes(formula), 0
    if (np.isnan(found.low) & (np.abs(PROBES) <= _ALWAYS)).any():
        return None, total
    for function, exact in (*_plain(found), *_with_parameters(found)):
        if agrees(found, function, exact, PROBES).all():
            right, work = proof(formula, function)
            total += work
            if right:
                return bounds(*function.parameters) if function.name == "clip" else function, total
    return None, total


@functools.lru_cache(maxsize=4096)
def _slopes(formula):
    """Returns `(slopes, work)`, the :class:`.Slopes` that an elementwise formula computes or None, as :func:`_function`."""
    found = _at_probes(formula)
    at = special((found.low + found.high) / 2)
    if formula.truth or at.zero != 0 or not 0 < abs(at.minus_one) + abs(at.one) < np.inf:
        return None, 0
    slopes = Slopes(-at.minus_one, at.one)
    if not agrees(found, slopes, slopes.exact(PROBES), PROBES).all():
        return None, 0
    right, work = proof(formula, slopes)
    return slopes if right else None, work


def _at_probes(formula):
    if len(_known) > _REMEMBERED:
        _known.clear()
    return evaluate(formula, PROBES, PROBES, known=_known)


@functools.lru_cache(maxsize=1)
def _known_values():
    """Returns the functions without parameters, and their values at the probes as an array (functions, probes)."""
    functions = [Function(one.name) for one in DEFINITIONS.values() if one.formula and not one.parameters]
    return functions, np.array([function.exact(PROBES) for function in functions])


def _plain(found):
    functions, exact = _known_values()
    few = exact[:, FEW]
    near = np.maximum(found.low[FEW] - few, few - found.high[FEW]) <= 2.0**-8 * np.abs(few) + 2.0**-20
    return [(functions[place], exact[place]) for place in np.flatnonzero(near.all(axis=1))]


def _with_parameters(found):
    """Yields the functions with parameters that are close to `found`, the expression's values, with their exact values. The
    parameters are computed from `found` and rounded to binary32, the format of parameters in files."""
    at = special((found.low + found.high) / 2)
    for one in DEFINITIONS.values():
        if one.formula is None or one.solve is None:
            continue
        try:
            function = Function(one.name, tuple(float(np.float32(value)) for value in one.solve(at)))
        except ValueError:
            continue
        exact = function.exact(PROBES[FEW])
        if (np.maximum(found.low[FEW] - exact, exact - found.high[FEW]) <= 2.0**-8 * np.abs(exact) + 2.0**-20).all():
            yield function, function.exact(PROBES)

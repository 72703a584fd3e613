"""Recognises what exporters write out in small operators: functions, and softmax.

`x * 0.5 * (1 + erf(x / sqrt(2)))` and its many relatives are told by what they are worth, so neither order nor grouping matters:
numbers of all sizes choose the function that it may be, and :mod:`sim.functions.proof` says whether it is. Softmax is told by its
structure.
"""

import contextlib
import functools
from dataclasses import replace
from math import prod

import numpy as np

from ...functions.functions import DEFINITIONS, Function
from ...functions.probes import FEW, PROBES, special
from ...functions.proof import agrees, jump, proof
from ...functions.ranges import evaluate
from ...fusion.fuse import bounds
from ...fusion.nodes import Unknown
from ..formulas.softmax import shares
from ..formulas.tensor_formulas import TRUTHS, formulas_of, shape_of
from ..index.values import SymbolicTensor, common, limited, reduction
from .elementwise import apply_function, softmax

__all__ = ["MOST_PROOFS", "limited_proofs", "unknown", "recognise"]

#: Work of all proofs for one model, as of :data:`sim.functions.proof.MOST_WORK`. After that, operators are computed one by one.
MOST_PROOFS = 1 << 24

_ALWAYS = 8  # up to here, a function must be a number
_REMEMBERED = 1 << 13  # values of formulas at the probes
_known = {}  # ranges of formulas at the probes


class _Share:
    """The work that is left of a model's share, and the formulas that it has paid for, made now or remembered."""

    def __init__(self):
        self.left, self.paid = MOST_PROOFS, set()


_share = _Share()


@contextlib.contextmanager
def limited_proofs():
    """Gives the model that is read inside its share of proofs."""
    global _share
    _share = _Share()
    yield


def unknown(step, why=""):
    """The tensor of a node of which nothing is known but its shape: it may be part of something that is. `why` says why no stage
    makes it by itself, where its formulas do not."""
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
    tensor = SymbolicTensor(dims, source, np.arange(size), batch, tensors[0].samples)
    formulas = formulas_of(step, tensor)
    source.why = functools.partial(_why, list(formulas.values()), why)
    return replace(tensor, formulas=formulas)


def _why(formulas, why):
    """Why a tensor with these formulas is no function that the core has, if there is something to say."""
    if _share.left <= 0:
        return "the model has too many different expressions to look at each; export its functions as ONNX operators"
    for formula in sorted(formulas, key=lambda one: one.depth):
        if formula.even and not formula.truth:
            wrong = PROBES[np.isnan(_at_probes(formula).low) & (np.abs(PROBES) <= _ALWAYS)]
            if wrong.size:
                return f"it is not a number at {wrong[np.abs(wrong + 1).argmin()]:.7g}; add a Clip before it"
        place = jump(formula) if formula.even and not formula.truth else None
        if place is not None:
            return f"it jumps at {place:.7g}, and the core's functions have no jumps"
    return why


def recognise(step, tensor):
    """The tensor that a step makes, as one function, or a softmax, of some tensor before it; None if it is not."""
    for root, formula in sorted(tensor.formulas.items(), key=lambda one: -one[1].depth):  # the longest first
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


def _affordable(formula):
    """The Function that an even formula is; None if it is none, or if the model's share of proofs is used up."""
    if _share.left <= 0:
        return None
    function, work = _function(formula)
    if formula not in _share.paid:
        _share.paid.add(formula)
        _share.left -= work
    return function


@functools.lru_cache(maxsize=4096)
def _function(formula):
    """The Function that an even formula is, or None, and the work of the proofs."""
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


def _at_probes(formula):
    if len(_known) > _REMEMBERED:
        _known.clear()
    return evaluate(formula, PROBES, PROBES, known=_known)


@functools.lru_cache(maxsize=1)
def _known_values():
    """The functions without parameters, and their values at the probes."""
    functions = [Function(one.name) for one in DEFINITIONS.values() if one.formula and not one.parameters]
    return functions, np.array([function.exact(PROBES) for function in functions])


def _plain(found):
    """Those that come near the values at the few probes that tell the most."""
    functions, exact = _known_values()
    few = exact[:, FEW]
    near = np.maximum(found.low[FEW] - few, few - found.high[FEW]) <= 2.0**-8 * np.abs(few) + 2.0**-20
    return [(functions[place], exact[place]) for place in np.flatnonzero(near.all(axis=1))]


def _with_parameters(found):
    """Functions with the parameters that the values at the probes say, if any; these are numbers in binary32, as files have."""
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

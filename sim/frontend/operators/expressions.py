"""Recognition of written-out expressions in small operators: activation functions, and softmax.

`x * 0.5 * (1 + erf(x / sqrt(2)))` and its variants are recognised by their values, so neither order nor grouping matters. Probes
of all magnitudes select a candidate function, and :mod:`sim.functions.proof` proves that the expression equals it. Softmax is
recognised by its structure.
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

#: Work limit of all proofs for one model, in the unit of :data:`sim.functions.proof.MOST_WORK`. Beyond it, operators are
#: computed one by one.
MOST_PROOFS = 1 << 24

_ALWAYS = 8  # a function must not be NaN up to this magnitude
_REMEMBERED = 1 << 13  # size limit of the cache below
_known = {}  # cache: ranges of formulas at the probes


class _Share:
    """The proof budget of a model: the work that is left, and the formulas that are already charged, proved now or cached."""

    def __init__(self):
        self.left, self.paid = MOST_PROOFS, set()


_share = _Share()


@contextlib.contextmanager
def limited_proofs():
    """Gives the model that is read inside a new proof budget."""
    global _share
    _share = _Share()
    yield


def unknown(step, why=""):
    """Returns the tensor of a node with a known shape and unknown values; it may be part of a function that is recognised later.
    `why` is the reason that no stage computes the node alone, if its formulas give none."""
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
    """Returns the reason that a tensor with these formulas is not a function of the core, or `why` if none is found."""
    if _share.left <= 0:
        return "the model has too many different expressions to prove each; export its functions as ONNX operators"
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
    """Returns a step's tensor as one function, or a softmax, of an earlier tensor; None if it is not recognised."""
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
    """Returns the Function that an elementwise formula equals; None if there is none, or if the proof budget is used up."""
    if _share.left <= 0:
        return None
    function, work = _function(formula)
    if formula not in _share.paid:
        _share.paid.add(formula)
        _share.left -= work
    return function


@functools.lru_cache(maxsize=4096)
def _function(formula):
    """Returns the Function that an elementwise formula equals, or None, and the work of the proofs."""
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
    """Returns the functions without parameters, and their values at the probes."""
    functions = [Function(one.name) for one in DEFINITIONS.values() if one.formula and not one.parameters]
    return functions, np.array([function.exact(PROBES) for function in functions])


def _plain(found):
    """Returns functions without parameters that are close to the values at the most selective probes."""
    functions, exact = _known_values()
    few = exact[:, FEW]
    near = np.maximum(found.low[FEW] - few, few - found.high[FEW]) <= 2.0**-8 * np.abs(few) + 2.0**-20
    return [(functions[place], exact[place]) for place in np.flatnonzero(near.all(axis=1))]


def _with_parameters(found):
    """Yields functions whose parameters follow from the values at the probes. Parameters are rounded to binary32, as in files."""
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

"""Recognises what exporters write out in small operators: functions, and softmax.

`x * 0.5 * (1 + erf(x / sqrt(2)))` and its many relatives are told by what they are worth, so neither order nor grouping matters:
numbers of all sizes choose the function that it may be, and :mod:`sim.formula.proof` says whether it is. Softmax is told by its
structure.
"""

import functools
from dataclasses import replace
from math import prod

import numpy as np

from ..formula.proof import agrees, jump, proves
from ..formula.ranges import LARGEST, evaluate
from ..fusion.fuse import bounds
from ..fusion.nodes import NO_FUNCTION, Unknown
from ..golden.functions import Function
from .elementwise import apply_spec, softmax
from .formula_softmax import shares
from .tensor_formulas import TRUTHS, formulas_of, shape_of
from .values import Flow, common, limited, reduction

__all__ = ["unknown", "recognise"]

_NEAR = 2.0 ** -10              # from 0, where hard_sigmoid is a line
_SPECIAL = (0.0, -1.0, 1.0, -_NEAR, _NEAR, -LARGEST, LARGEST)
_SIZES = [*np.logspace(-36, 38, 38), 0.03, 0.3, 0.7, 1.3, 2, 2.7, 3.3, 4.2, 5.5, 6.7, 8, 12, 17, 25, 40, 60, 80, 87, 130, 300]
_PROBES = np.array([*_SPECIAL, *_SIZES, *np.negative(_SIZES)])
_FEW = np.flatnonzero(np.isin(_PROBES, (-1, 1, -2, 2, -4.2, -0.3, 12)))     # tell the most
_ALWAYS = 8                     # up to here, a function must be a number
_REMEMBERED = 1 << 13           # values of formulas at the probes
_known = {}                     # ranges of formulas at the probes
_WITHOUT_PARAMETERS = ("none", "relu", "abs", "sigmoid", "tanh", "gelu", "gelu_tanh", "hard_swish", "silu", "mish", "softplus",
                       "softsign", "exp", "erf")


def unknown(step):
    """The flow of a node of which nothing is known but its shape: it may be part of something that is."""
    values = [value for value in step.arguments if value is not None]
    flows = [value for value in values if isinstance(value, Flow)]
    if step.operator.startswith("Reduce"):
        _, dims, batch = reduction(step, flows[0])
    else:
        dims, batch = common(step, *values)
    size = prod(dims)
    limited(step, size)
    before = [flow.source for flow in flows if isinstance(flow.source, Unknown)]
    fault = next((one.fault or one for one in before if one.fault or not one.truth), None)
    source = Unknown(**step.titles, shape=(1, 1, size), truth=step.operator in TRUTHS, fault=fault)
    flow = Flow(dims, source, np.arange(size), batch, flows[0].samples)
    formulas = formulas_of(step, flow)
    source.why = functools.partial(_why, list(formulas.values()))
    return replace(flow, formulas=formulas)


def _why(formulas):
    """Why a flow with these formulas is no function that the core has, if there is something to say."""
    for formula in sorted(formulas, key=lambda one: one.depth):
        place = jump(formula) if formula.even and not formula.truth else None
        if place is not None:
            return f"it jumps at {place:.7g}, and the core's functions have no jumps"
    return ""


def recognise(step, flow):
    """The flow that a step makes, as one function, or a softmax, of some tensor before it; None if it is not."""
    for root, formula in sorted(flow.formulas.items(), key=lambda one: -one[1].depth):      # the longest first
        if shape_of(root) != shape_of(flow) or formula.truth:
            continue
        if formula.even:
            function = _function(formula)
            if function is not None:
                return apply_spec(step, root, function)
            continue
        found = shares(formula, shape_of(root))
        if found is not None:
            kind, axis = found
            return softmax(replace(step, attributes={"axis": axis}, opset=13), root, kind)
    return None


@functools.lru_cache(maxsize=4096)
def _function(formula):
    """The name and the parameters of the function that an even formula is, or None."""
    found = _at_probes(formula)
    if (np.isnan(found.low) & (np.abs(_PROBES) <= _ALWAYS)).any():
        return None
    for function, exact in (*_plain(found), *_with_parameters(found)):
        if agrees(found, function, exact, _PROBES).all() and proves(formula, function):
            name, parameters = function.name, function.parameters
            return bounds(*parameters) if name == "clip" else NO_FUNCTION if name == "none" else (name, parameters)
    return None


def _at_probes(formula):
    if len(_known) > _REMEMBERED:
        _known.clear()
    return evaluate(formula, _PROBES, _PROBES, known=_known)


@functools.lru_cache(maxsize=1)
def _known_values():
    """The functions without parameters, and their values at the probes."""
    functions = [Function(name) for name in _WITHOUT_PARAMETERS]
    return functions, np.array([function.exact(_PROBES) for function in functions])


def _plain(found):
    """Those that come near the values at the few probes that tell the most."""
    functions, exact = _known_values()
    few = exact[:, _FEW]
    near = np.maximum(found.low[_FEW] - few, few - found.high[_FEW]) <= 2.0 ** -8 * np.abs(few) + 2.0 ** -20
    return [(functions[place], exact[place]) for place in np.flatnonzero(near.all(axis=1))]


def _with_parameters(found):
    """Functions with the parameters that the values at the probes say, if any; these are numbers in binary32, as files have."""
    zero, below, above, left, right, lowest, highest = ((found.low + found.high) / 2)[:len(_SPECIAL)]
    low, high = (-np.inf if lowest <= -LARGEST / 2 else lowest), (np.inf if highest >= LARGEST / 2 else highest)
    bottom = np.expm1(-1)
    for name, parameters in (("clip", (low, high)), ("leaky_relu", (-below,)), ("elu", (below / bottom,)),
                             ("selu", (below / bottom / above, above)), ("hard_sigmoid", ((right - left) / (2 * _NEAR), zero))):
        try:
            function = Function(name, tuple(float(np.float32(value)) for value in parameters))
        except ValueError:
            continue
        exact = function.exact(_PROBES[_FEW])
        if (np.maximum(found.low[_FEW] - exact, exact - found.high[_FEW]) <= 2.0 ** -8 * np.abs(exact) + 2.0 ** -20).all():
            yield function, function.exact(_PROBES)

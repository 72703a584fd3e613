"""Recognises what exporters write out in small operators: functions, and softmax.

`x * 0.5 * (1 + erf(x / sqrt(2)))` and its many relatives are told by their values: the operators between a tensor and what is
made of it are computed in binary64 on probes, and compared with the functions that the core has. So neither order nor grouping
matters.
"""

from dataclasses import replace
from math import erf, prod

import numpy as np

from .drafts import Unknown
from .functions import Function
from .onnx_elementwise import apply_spec, softmax
from .onnx_flow import Flow, common, limited, reduction

__all__ = ["ELEMENTS", "unknown", "recognise"]

_PROBES = 256
_TOLERANCE = 1e-5           # constants in files are binary32
_DEEPEST = 48               # operators between a tensor and what is made of it
_SPECIAL = (0.0, -1.0, 1.0, -20.0, 20.0, -0.125, 0.125)


def _reduced(operation):
    def apply(values, step, dims):
        axes = step.integers("axes", 1)
        keep = bool(step.attributes.get("keepdims", 1))
        return operation(values[0], axis=None if axes is None else tuple(axes), keepdims=keep)
    return apply


def _of_values(function):
    return lambda values, step, dims: function(*values)


def _clip(values, step, dims):
    low, high = (step.attributes.get(key) if step.opset < 11 else bound
                 for key, bound in zip(("min", "max"), [*values[1:], None, None]))
    return np.clip(values[0], -np.inf if low is None else low, np.inf if high is None else high)


def _log_sum_exp(values, **options):
    return np.log(np.exp(values).sum(**options))


def _leaky(values, step, dims):
    return np.where(values[0] < 0, step.attributes.get("alpha", 0.01) * values[0], values[0])


def _elu(values, step, dims):
    return np.where(values[0] < 0, step.attributes.get("alpha", 1.0) * np.expm1(values[0]), values[0])


def _hard_sigmoid(values, step, dims):
    return np.clip(step.attributes.get("alpha", 0.2) * values[0] + step.attributes.get("beta", 0.5), 0, 1)


def _largest(*values):
    return np.maximum.reduce(np.broadcast_arrays(*values))


def _least(*values):
    return np.minimum.reduce(np.broadcast_arrays(*values))


def _summed(*values):
    return np.add.reduce(np.broadcast_arrays(*values))


def _reshaped(values, step, dims):
    return np.broadcast_to(values[0], dims) if step.operator == "Expand" else np.reshape(values[0], dims)


#: ONNX operator -> what it makes of the values of its inputs (of None for those left out), of the step and the result's shape.
_NUMERIC = {
    **{name: _of_values(function) for name, function in {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Neg": np.negative,
        "Abs": np.abs, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal,
        "Erf": np.vectorize(erf, otypes=[float]), "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Relu": lambda x: np.maximum(x, 0), "Softplus": lambda x: np.logaddexp(0, x), "Softsign": lambda x: x / (1 + np.abs(x)),
        "Max": _largest, "Min": _least, "Sum": _summed, "Where": np.where, "Not": np.logical_not, "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal}.items()},
    "Clip": _clip, "LeakyRelu": _leaky, "Elu": _elu, "HardSigmoid": _hard_sigmoid,
    "ReduceMax": _reduced(np.max), "ReduceSum": _reduced(np.sum), "ReduceLogSumExp": _reduced(_log_sum_exp),
    **dict.fromkeys(("Identity", "Dropout", "Cast", "CastLike", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Expand"),
                    _reshaped),
}

#: Operators that an expression may consist of; those that are only supported in one.
ELEMENTS = tuple(_NUMERIC)


def unknown(step):
    """The flow of a node of which nothing is known but its shape: it may be part of something that is."""
    values = [value for value in step.arguments if value is not None]
    flow = next(value for value in values if isinstance(value, Flow))
    if step.operator.startswith("Reduce"):
        _, dims, batch = reduction(step, flow)
    else:
        dims, batch = common(step, *values)
    size = prod(dims)
    limited(step, size)
    node = Unknown(**step.titles, shape=(1, 1, size))
    return Flow(dims, node, np.arange(size), batch, flow.samples, step=step)


def recognise(flow):
    """The flow as one function, or a softmax, of some tensor before it; None if it is not."""
    for root in _roots(flow):
        probes = _probe(flow, root)
        if probes is None:
            continue
        x, y = probes
        function = _function(x.ravel(), y.ravel())
        if function is not None:
            return replace(apply_spec(flow.step, root, function), step=flow.step)
        for axis in (axis for axis, length in enumerate(root.dims) if length > 1 and axis != root.batch):
            kind = _shares(x, y, axis + 1)
            if kind:
                step = replace(flow.step, attributes={"axis": axis}, opset=13)
                return softmax(step, root, kind)
    return None


def _roots(flow):
    """Tensors of the same shape that this may be a function of, the farthest first."""
    found, queue = {}, [flow]
    while queue and len(found) < _DEEPEST:
        step = queue.pop(0).step
        for value in step.arguments if step else ():
            if isinstance(value, Flow) and value not in found:
                found[value] = None
                queue.append(value)
    return [root for root in reversed(found)
            if (root.dims, root.batch) == (flow.dims, flow.batch) and not isinstance(root.source, Unknown)]


def _probe(flow, root):
    """(probes, what the operators between make of them), both (trials, ...), or None if it is not a function of `root` alone."""
    sizes = root.shape(2)
    trials = -(-_PROBES // prod(sizes))
    x = np.random.default_rng(0).uniform(-6, 6, trials * prod(sizes))
    x[:len(_SPECIAL)] = _SPECIAL
    x = x.reshape(trials, *sizes)
    y = []
    for values in x:
        known = {root: values}
        try:
            y.append(_computed(flow, known))
        except LookupError:
            return None
    y = np.stack(y)
    return (x, y) if y.shape == x.shape and y.dtype == float else None


def _computed(flow, known):
    """The values of a flow from those of the ones before it; LookupError if it needs others."""
    if flow not in known:
        if flow.step is None:
            raise LookupError
        values = [_computed(value, known) if isinstance(value, Flow) else
                  np.asarray(value, float) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
                  for value in flow.step.arguments]
        known[flow] = np.asarray(_NUMERIC[flow.step.operator](values, flow.step, flow.shape(2)))
    return known[flow]


def _function(x, y):
    """The function that makes y of x, or None."""
    at = dict(zip(_SPECIAL, y))
    low, high = y.min(), y.max()
    candidates = [("clip", (-np.inf if low == x.min() else low, np.inf if high == x.max() else high))] if low <= high else []
    candidates = [("relu", ()), *candidates, ("leaky_relu", (-at[-1.0],)), ("elu", (-at[-20.0],)), ("hard_sigmoid", (
        (at[0.125] - at[-0.125]) * 4, at[0.0]))]
    candidates += [(name, ()) for name in ("sigmoid", "tanh", "gelu", "gelu_tanh", "hard_swish", "silu", "mish", "softplus",
                                           "softsign", "exp", "abs", "erf", "selu")]
    for name, parameters in candidates:
        if np.isnan(parameters).any():
            continue
        if _near(y, Function(name, tuple(float(value) for value in parameters)).exact(x)):
            return name, tuple(float(value) for value in parameters)
    return None


def _near(one, two):
    return bool((np.abs(one - two) <= _TOLERANCE * (1 + np.abs(two))).all())


def _shares(x, y, axis):
    """"softmax" or "log" if y is that of x along an axis, else ""."""
    exponents = x - x.max(axis=axis, keepdims=True)
    total = np.exp(exponents).sum(axis=axis, keepdims=True)
    return "softmax" if _near(y, np.exp(exponents) / total) else "log" if _near(y, exponents - np.log(total)) else ""

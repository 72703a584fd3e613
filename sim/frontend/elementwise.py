"""ONNX' operators on each value by itself: scales and shifts by constants, functions, sums and products of two tensors."""

from dataclasses import replace

import numpy as np

from ..fusion.fuse import bounds
from ..fusion.nodes import NO_FUNCTION, Affine, Joint, Linear, Part, identity, per_channel
from ..ir.errors import ModelError
from .values import Flow, common, limited, show, unsupported, whole
from .views import arrangement, copied, everything, select, slide, view

__all__ = ["affine", "elementwise", "function", "apply_function", "apply_spec", "softmax"]


_LEAST = 2.0 ** -126        # normal number


# Scales and shifts

def elementwise(step, flow):
    """Add, Sub, Mul, Div, Neg, Sum, BatchNormalization, Scaler."""
    operator = step.operator
    if operator == "Neg":
        return affine(step, flow, scale=np.array(-1.0))
    if operator == "Scaler":
        offset, scale = (np.array(step.attributes[key], dtype=np.float64) for key in ("offset", "scale"))
        return affine(step, replace(flow, integer=False), scale=scale, shift=-offset * scale)
    if operator == "BatchNormalization":
        return _normalised(step, flow)
    if operator == "Sum":
        return _summed(step)
    if all(isinstance(value, Flow) for value in step.arguments):
        return _of_tensors(step)
    left = isinstance(step.arguments[0], Flow)
    constant = step.arguments[1 if left else 0].astype(np.float64)
    if operator == "Mul":
        return affine(step, flow, scale=constant)
    if operator == "Add":
        return affine(step, flow, shift=constant)
    if operator == "Sub":
        return affine(step, flow, shift=-constant) if left else affine(step, flow, scale=np.array(-1.0), shift=constant)
    if not left:
        raise ModelError(f"{step.title}: divides a constant by values; only values by a constant is supported")
    return affine(step, flow, scale=1 / constant)


def _summed(step):
    result, *flows = (value for value in step.arguments if isinstance(value, Flow))
    for value in flows:
        result = _of_tensors(replace(step, arguments=[result, value]))
    for value in step.arguments:
        if not isinstance(value, Flow):
            result = affine(step, result, shift=value.astype(np.float64))
    return result


def _normalised(step, flow):
    if step.attributes.get("training_mode", 0) or not isinstance(step.arguments[0], Flow):
        raise ModelError(f"{step.title}: must be exported for inference")
    gain, offset, mean, variance = (value.astype(np.float64) for value in step.arguments[1:5])
    gain = gain / np.sqrt(variance + step.attributes.get("epsilon", 1e-5))
    shape = (-1,) + (1,) * (len(flow.dims) - 2)
    return affine(step, flow, scale=gain.reshape(shape), shift=(offset - mean * gain).reshape(shape))


def _per_value(step, flow, constant):
    """A flow in the shape of `flow + constant`, and the constant as one number for each value of a sample."""
    dims, batch = common(step, flow, constant)
    flow = broadcast(step, flow, dims, batch)
    return flow, np.broadcast_to(constant, dims).reshape(-1)


def affine(step, flow, scale=None, shift=None):
    """`flow * scale + shift`."""
    for constant in (scale, shift):
        if constant is not None and not np.isfinite(constant).all():
            raise ModelError(f"{step.title}: a constant of it is infinite or no number")
    if scale is not None and ((scale != 0) & (np.abs(scale) < _LEAST)).any():
        raise ModelError(f"{step.title}: multiplies by less than 2^-126, which is a subnormal number; the core takes these for 0")
    if scale is not None:
        flow, scale = _per_value(step, flow, scale)
    if shift is not None:
        dims = flow.dims
        flow, shift = _per_value(step, flow, shift)
        if scale is not None and flow.dims != dims:
            scale = np.broadcast_to(scale.reshape(dims), flow.dims).reshape(-1)
    flow = everything(step, flow)

    def placed(values):
        if values is None:
            return None
        array = np.empty(flow.size)
        array[flow.index] = values
        return per_channel(array.reshape(flow.source.shape), flow.source.shape)
    return flow.of(Affine(**step.titles, shape=flow.source.shape, source=flow.source, loose=flow.source.loose,
                          scale=placed(scale), shift=placed(shift)))


# Functions

def function(step, flow):
    """Operators that are one function, and Clip, Max and Min with constants."""
    operator = step.operator
    if operator in ("Clip", "Max", "Min"):
        return _bounded(step, flow)
    if operator == "PRelu":
        return _sloped(step, flow)
    return apply_function(step, flow, operator)


_STEEPEST = 1       # slope up to which two terms may have something in common that cancels out: none of them overflows alone


def _sloped(step, flow):
    """PRelu."""
    slope = step.arguments[1]
    if isinstance(slope, Flow) or not isinstance(step.arguments[0], Flow):
        raise ModelError(f"{step.title}: its slope must be constant")
    if common(step, flow, slope)[0] != flow.dims:
        raise ModelError(f"{step.title}: slope of {show(slope.shape)} does not fit {show(flow)}")
    if not np.isfinite(slope).all():
        raise ModelError(f"{step.title}: its slope is infinite or no number")
    if np.unique(slope).size == 1:
        return apply_spec(step, flow, ("leaky_relu", (float(slope.reshape(-1)[0]),)))
    flow = everything(step, flow)
    slope = slope.astype(np.float64)
    if np.abs(slope).max() > _STEEPEST:         # relu(x) - slope * relu(-x): a stage more, and nothing cancels out
        below = apply_spec(step, affine(step, flow, scale=np.array(-1.0)), ("relu", ()))
        return _of_tensors(replace(step, arguments=[apply_spec(step, flow, ("relu", ())), affine(step, below, scale=-slope)]),
                           "Add")
    # One slope for each channel: x * slope + relu(x) * (1 - slope).
    return _of_tensors(replace(step, arguments=[affine(step, flow, scale=slope), affine(step, apply_spec(
        step, flow, ("relu", ())), scale=1 - slope)]), "Add")


#: ONNX operator -> name of the function, and its attributes with what they are when they are left out.
_NAMES = {
    "Relu": ("relu",), "Sigmoid": ("sigmoid",), "Tanh": ("tanh",), "HardSwish": ("hard_swish",), "Mish": ("mish",),
    "Softplus": ("softplus",), "Softsign": ("softsign",), "Exp": ("exp",), "Abs": ("abs",), "Erf": ("erf",),
    "LeakyRelu": ("leaky_relu", ("alpha", 0.01)), "Elu": ("elu", ("alpha", 1.0)),
    "HardSigmoid": ("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "Selu": ("selu", ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
}


def apply_function(step, flow, operator):
    """The function of this ONNX operator; the attributes are the step's."""
    if operator == "Gelu":
        approximate = step.attributes.get("approximate", b"none").decode()
        return apply_spec(step, flow, ("gelu_tanh" if approximate == "tanh" else "gelu", ()))
    if operator == "Clip":              # of a FusedConv
        return apply_spec(step, flow, bounds(*step.attributes["activation_params"]))
    if operator not in _NAMES:
        raise ModelError(f"{step.title}: its activation {operator} is not supported; {', '.join(_NAMES)} are")
    name, *attributes = _NAMES[operator]
    fused = list(step.attributes.get("activation_params", []))
    values = fused or [float(step.attributes.get(key, default)) for key, default in attributes]
    if not np.isfinite(values).all():
        raise ModelError(f"{step.title}: one of {', '.join(key for key, _ in attributes)} is infinite or no number")
    return apply_spec(step, flow, (name, tuple(values)))


def apply_spec(step, flow, spec):
    """A function by its name and parameters."""
    if spec == NO_FUNCTION:
        return flow
    flow = everything(step, flow)
    source = flow.source
    return flow.of(Linear(**step.titles, shape=source.shape, parts=(identity(source),), function=spec, loose=source.loose))


def _bounded(step, flow):
    if step.operator == "Clip":
        low, high = (step.attributes.get(key) if step.opset < 11 else constant
                     for key, constant in zip(("min", "max"), (step.argument(1), step.argument(2))))
        if isinstance(low, Flow) or isinstance(high, Flow) or not isinstance(step.arguments[0], Flow):
            raise ModelError(f"{step.title}: its bounds must be constant")
        low, high = (None if bound is None else float(np.reshape(bound, ())) for bound in (low, high))
    else:
        constants = [value for value in step.arguments if not isinstance(value, Flow)]
        if len(constants) != len(step.arguments) - 1:
            raise ModelError(f"{step.title}: is only supported of one tensor and constants")
        if not constants:
            return flow
        dims, batch = common(step, *step.arguments)
        flow = broadcast(step, flow, dims, batch)
        every = (np.maximum if step.operator == "Max" else np.minimum).reduce([np.broadcast_to(v, dims) for v in constants])
        if np.unique(every).size != 1:
            raise ModelError(f"{step.title}: its constants differ from value to value; only one constant number is supported")
        bound = float(every.reshape(-1)[0])
        low, high = (bound, None) if step.operator == "Max" else (None, bound)
    low, high = (bound if bound is None else np.reshape(bound, ())[()] for bound in (low, high))
    largest = np.finfo(np.float32).max
    low = -np.inf if low is None or low <= -largest else low
    high = np.inf if high is None or high >= largest else high
    if not low <= high:
        raise ModelError(f"{step.title}: its bounds {low} and {high} are the wrong way round")
    return apply_spec(step, flow, bounds(low, high))


# Softmax

def softmax(step, flow, kind=None):
    """Softmax and LogSoftmax over the channels, or over all values of a sample; `kind` is "softmax" or "log", if it is not the
    operator's. Over several positions at once nothing can make it, so it may only be left out."""
    axis = step.attributes.get("axis", -1 if step.opset >= 13 else 1) % len(flow.dims)
    # Before opset 13 everything from the axis on was taken together.
    axes = [axis] if step.opset >= 13 else range(axis, len(flow.dims))
    if flow.batch in axes:
        raise ModelError(f"{step.title}: is along axis {axis} of {show(flow)}, and so across the batch; "
                         f"a sample may only depend on itself")
    covered = np.prod([flow.dims[axis] for axis in axes])
    kind = kind or ("softmax" if step.operator == "Softmax" else "log")
    if covered == flow.size:
        flow = everything(step, flow)
        return _shares(step, flow, "all" if kind == "softmax" and flow.source.shape[:2] != (1, 1) else kind)
    if covered == flow.dims[axis] and kind == "softmax":
        return _shares(step, arrangement(step, flow, last=axis)[0], kind)
    raise ModelError(f"{step.title}: must be over all {flow.size} values of a sample or over its channels; its shape is "
                     f"{show(flow)}, its axis {axis}")


def _shares(step, flow, kind):
    return flow.of(Linear(**step.titles, shape=flow.source.shape, parts=(identity(flow.source),), softmax=kind))


# Two tensors

def broadcast(step, flow, dims, batch):
    """A flow in this shape, into which it fits, with the batch along this axis."""
    if dims == flow.dims:
        return flow
    limited(step, *dims)
    return flow.turned(np.broadcast_to(flow.sample, dims), batch)


def _of_tensors(step, operator=None):
    operator = operator or step.operator
    one, two = step.arguments
    dims, batch = common(step, one, two)
    if operator not in ("Add", "Sub", "Mul", "Sum"):
        raise unsupported(step.node, "is not supported on two tensors")
    if one.dims != dims and two.dims == dims and operator != "Sub":
        one, two = two, one
    one, two = (broadcast(step, flow, dims, batch) for flow in (one, two))
    one = everything(step, one)
    # The second one's values in the places of the first one's node.
    height, width, channels = one.source.shape
    places = np.empty_like(two.index)
    places[one.index] = two.index
    places = places.reshape(height, width, channels).transpose(2, 0, 1)
    if operator == "Mul":
        same = (not isinstance(two.source, Joint) and two.source.shape == one.source.shape
                and np.array_equal(places, whole(two.source)))
        other = two.source if same else copied(step, two, places)
        node = Linear(**step.titles, shape=one.source.shape, parts=(identity(one.source),), times=other)
        return one.of(node)
    seen = view(two, places)
    place = None if seen is None else slide(seen, (height, width), (1, 1))
    if place is None:
        other = copied(step, two, places)
        seen, place = view(two.of(other, whole(other)), whole(other)), {}
    limited(step, seen.source.shape[2], channels)
    second = select(seen.source, seen.channels, **place)
    if operator == "Sub":
        second = replace(second, weights=-second.weights, select=None)
    part = Part((*identity(one.source).taps, second), (height, width))
    return one.of(Linear(**step.titles, shape=one.source.shape, parts=(part,)))

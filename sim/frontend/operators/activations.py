"""Functions of each value of a tensor: operators that are one activation function, PRelu, Clip, and Max and Min."""

from dataclasses import replace

import numpy as np

from ...functions.functions import DEFINITIONS, NONE, RELU, Function, attributes_of, of_operator
from ...fusion.composed import bounds
from ...fusion.nodes import Linear, SumRegion, Tap, identity
from ...ir.errors import ModelError
from ...ir.stage import Pool
from ..index.values import SymbolicTensor, common, limited, show
from ..index.views import copied, everything
from ..registry import ELEMENTWISE, FUNCTIONS, operator, register
from .elementwise import LARGEST, added, affine, broadcast, by_channel, places_in

__all__ = ["apply_function", "apply_operator"]


@operator("PRelu", group=FUNCTIONS, counts_from_end=True)
@operator("Clip", group=FUNCTIONS, counts_from_end=True, attributes=("min", "max"))
@operator("Max", "Min", group=ELEMENTWISE, joins=True, counts_from_end=True)
def function(step, tensor):
    """Handles Clip, Max, Min, PRelu and all operators that are one activation function."""
    operator = step.operator
    if operator in ("Max", "Min"):
        several = [value for value in step.arguments if isinstance(value, SymbolicTensor)]
        if len(several) > 1:
            tensor = _extremum(step, several)
            constants = [value for value in step.arguments if not isinstance(value, SymbolicTensor)]
            step = replace(step, arguments=[tensor, *constants])
    if operator in ("Clip", "Max", "Min"):
        return _bounded(step, tensor)
    if operator == "PRelu":
        return _sloped(step, tensor)
    return apply_operator(step, tensor, operator)


for _name in dict.fromkeys(one.operator for one in DEFINITIONS.values() if one.operator):
    register((_name,), function, FUNCTIONS, counts_from_end=True, attributes=attributes_of(_name))

_STEEPEST = 1  # largest slope for a sum of two terms that partly cancel: neither term overflows alone


def _sloped(step, tensor):
    """Handles PRelu. Returns the tensor with the values below 0 multiplied by constant slopes."""
    slope = step.arguments[1]
    if isinstance(slope, SymbolicTensor) or not isinstance(step.arguments[0], SymbolicTensor):
        raise ModelError(f"{step.title}: its slope must be constant")
    if common(step, tensor, slope)[0] != tensor.dims:
        raise ModelError(f"{step.title}: slope of {show(slope.shape)} does not fit {show(tensor)}")
    if step.training:
        return _trained_slope(step, everything(step, tensor), slope.astype(np.float64))
    if np.unique(slope).size == 1:
        return apply_function(step, tensor, Function("leaky_relu", (slope.reshape(-1)[0],)))
    tensor = everything(step, tensor)
    slope = slope.astype(np.float64)
    if np.abs(slope).max() > _STEEPEST:  # relu(x) - slope * relu(-x): one more stage, but no cancellation
        below = apply_function(step, affine(step, tensor, scale=np.array(-1.0)), RELU)
        above = apply_function(step, tensor, RELU)
        return added(step, above, affine(step, below, scale=-slope))
    # One slope for each channel: x * slope + relu(x) * (1 - slope).
    return added(step, affine(step, tensor, scale=slope), affine(step, apply_function(step, tensor, RELU), scale=1 - slope))


def _trained_slope(step, tensor, slope):
    """Returns relu(x) - slope * relu(-x), with the slopes as weights that training finds. If slopes differ from position to
    position, each value is a channel of one position."""
    given = tensor
    if is_apart := by_channel(tensor, slope).shape[:2] != (1, 1):
        numbers = np.arange(tensor.size)
        tensor = tensor.of(copied(step, tensor, tensor.index.reshape(-1, 1, 1)), numbers.reshape(tensor.sample.shape))
    slope, (height, width, channels) = by_channel(tensor, slope), tensor.source.shape
    above, below = (apply_function(step, affine(step, tensor, scale=np.array(sign)), RELU).source for sign in (1.0, -1.0))
    taps = (*identity(above).taps, Tap(below, -slope[None], groups=channels))
    made = tensor.of(Linear(**step.titles, shape=(height, width, channels), parts=(SumRegion(taps, (height, width)),)))
    if not is_apart:
        return made
    places = np.empty(given.size, np.int64)
    places[given.index] = numbers
    return given.of(copied(step, made, places.reshape(given.source.shape).transpose(2, 0, 1)))


def apply_operator(step, tensor, operator):
    """Applies the activation function of the ONNX operator `operator` to a tensor. The attributes of the step are the parameters
    of the function."""
    try:
        function = _function_of(step, operator)
    except ModelError:
        raise
    except ValueError as error:  # from Function, for invalid parameters
        raise ModelError(f"{step.title}: {error}") from None
    return apply_function(step, tensor, function)


def _function_of(step, operator):
    if operator == "Clip":  # of a FusedConv
        return bounds(*step.attributes["activation_params"])
    definition = of_operator(operator, step.attributes)
    if definition is None:
        known = dict.fromkeys(one.operator for one in DEFINITIONS.values() if one.operator)
        raise ModelError(f"{step.title}: its activation {operator} is not supported; {', '.join(known)} are")
    values = list(step.attributes.get("activation_params", [])) or [
        float(step.attributes.get(key, usual)) for key, usual in zip(definition.attributes, definition.parameters)
    ]
    if not np.isfinite(values).all():
        raise ModelError(f"{step.title}: one of {', '.join(definition.attributes)} is infinite or NaN")
    return Function(definition.name, tuple(values))


def apply_function(step, tensor, function):
    """Applies a :class:`sim.functions.functions.Function` to each value of a tensor."""
    if function == NONE:
        return tensor
    tensor = everything(step, tensor)
    source = tensor.source
    return tensor.of(Linear(**step.titles, shape=source.shape, parts=(identity(source),), function=function, loose=source.loose))


def _bounded(step, tensor):
    if step.operator == "Clip":
        low, high = (
            step.attributes.get(key) if step.opset < 11 else constant
            for key, constant in zip(("min", "max"), (step.argument(1), step.argument(2)))
        )
        if [isinstance(value, SymbolicTensor) for value in (step.arguments[0], low, high)] != [True, False, False]:
            raise ModelError(f"{step.title}: its bounds must be constant")
        low, high = (None if bound is None else float(np.reshape(bound, ())) for bound in (low, high))
    else:
        constants = [value for value in step.arguments if not isinstance(value, SymbolicTensor)]
        if not constants:
            return tensor
        dims, batch = common(step, *step.arguments)
        tensor = broadcast(step, tensor, dims, batch)
        every = (np.maximum if step.operator == "Max" else np.minimum).reduce([np.broadcast_to(v, dims) for v in constants])
        if np.unique(every).size != 1:
            raise ModelError(f"{step.title}: its constants differ from value to value; only one constant number is supported")
        bound = float(every.reshape(-1)[0])
        low, high = (bound, None) if step.operator == "Max" else (None, bound)
    low, high = (bound if bound is None else np.reshape(bound, ())[()] for bound in (low, high))
    largest = np.finfo(np.float32).max
    low = -np.inf if low is None or low <= -largest else low
    high = np.inf if high is None or high >= largest else high
    if low > LARGEST or high < -LARGEST:
        raise ModelError(f"{step.title}: its bounds {low} and {high} leave no bfloat16 number; leave out the infinite bound")
    if np.isnan([low, high]).any():
        raise ModelError(f"{step.title}: its bounds are {low} and {high}; they must be numbers")
    return apply_function(step, tensor, bounds(min(low, high), high))  # the upper bound counts last


def _extremum(step, tensors):
    """Handles Max and Min of several tensors as max pooling over the tensors, stacked along y. For Min, the signs of the operands
    and of the result are inverted."""
    dims, batch = common(step, *tensors)
    first, *rest = [broadcast(step, tensor, dims, batch) for tensor in tensors]
    first = everything(step, first)
    height, width, channels = first.source.shape
    limited(step, height * len(tensors), width, channels)
    nodes = [first.source, *(copied(step, tensor, places_in(first, tensor)) for tensor in rest)]
    sign = 1 if step.operator == "Max" else -1
    parts = tuple(
        SumRegion(
            tuple(replace(tap, weights=sign * tap.weights) for tap in identity(node).taps), (height, width), (row * height, 0)
        )
        for row, node in enumerate(nodes)
    )
    above = Linear(**step.titles, shape=(height * len(nodes), width, channels), parts=parts)
    pool = Pool((len(nodes), 1), (height, width), dilation=(height, 1))
    result = first.of(Linear(**step.titles, shape=first.source.shape, parts=(identity(above),), pool=pool))
    return result if sign > 0 else affine(step, result, scale=np.array(-1.0))

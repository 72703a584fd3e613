"""Elementwise operators of ONNX: scales and shifts by constants, and sums and products of two tensors."""

from dataclasses import replace

import numpy as np

from ...functions.functions import Function
from ...fusion.nodes import Affine, Joint, Linear, SumRegion, Tap, identity, per_channel
from ...ir.errors import ModelError
from ..index.blocks import block_select
from ..index.phases import phases_of
from ..index.values import SymbolicTensor, common, has_all, limited, whole
from ..index.views import copied, everything, select, slide, view
from ..registry import ELEMENTWISE, ML, operator

__all__ = [
    "LARGEST",
    "added",
    "affine",
    "as_values",
    "broadcast",
    "by_channel",
    "in_range",
    "places_in",
    "product",
    "trained_affine",
]


_LEAST = 2.0**-126  # least normal number
LARGEST = 2.0**128 - 2.0**120  # largest bfloat16


# Scales and shifts


@operator("Add", "Sub", "Mul", "Sum", "Mean", group=ELEMENTWISE, joins=True, counts_from_end=True)
@operator("Neg", group=ELEMENTWISE, counts_from_end=True)
@operator(
    "BatchNormalization",
    group=ELEMENTWISE,
    on_constants=False,
    attributes=("epsilon", "spatial", "training_mode", "momentum"),  # the last only affects training
)
@operator("Scaler", group=ELEMENTWISE, domain=ML, on_constants=False, attributes=("offset", "scale"))
def elementwise(step, tensor):
    """Handles Add, Sub, Mul, Neg, Sum, Mean, BatchNormalization and Scaler."""
    operator = step.operator
    if operator == "Neg":
        return affine(step, tensor, scale=np.array(-1.0))
    if operator == "Scaler":
        offset, scale = (np.array(step.attributes[key], dtype=np.float64) for key in ("offset", "scale"))
        return affine(step, replace(tensor, integer=False), scale=scale, shift=-offset * scale)
    if operator == "BatchNormalization":
        return _folded_batch_norm(step, tensor)
    if operator == "Sum":
        return _summed(step)
    if operator == "Mean":
        return affine(step, _summed(step), scale=np.array(1 / len(step.arguments)))
    if all(isinstance(value, SymbolicTensor) for value in step.arguments):
        return _of_tensors(step)
    left = isinstance(step.arguments[0], SymbolicTensor)
    constant = step.arguments[1 if left else 0].astype(np.float64)
    if step.training and (made := _of_norm(step, tensor, constant)):
        return made
    if operator == "Mul":
        return affine(step, tensor, scale=constant)
    if operator == "Add":
        return affine(step, tensor, shift=constant)
    return affine(step, tensor, shift=-constant) if left else affine(step, tensor, scale=np.array(-1.0), shift=constant)


def _summed(step):
    result, *tensors = (value for value in step.arguments if isinstance(value, SymbolicTensor))
    for value in tensors:
        result = _of_tensors(replace(step, arguments=[result, value]), "Add")
    for value in step.arguments:
        if not isinstance(value, SymbolicTensor):
            result = affine(step, result, shift=value.astype(np.float64))
    return result


def _folded_batch_norm(step, tensor):
    if step.attributes.get("training_mode", 0) or not isinstance(step.arguments[0], SymbolicTensor):
        raise ModelError(f"{step.title}: must be exported for inference")
    gain, offset, mean, variance = (value.astype(np.float64) for value in step.arguments[1:5])
    gain = gain / np.sqrt(variance + step.attributes.get("epsilon", 1e-5))
    shape = (-1,) + (1,) * (len(tensor.dims) - 2)
    return affine(step, tensor, scale=gain.reshape(shape), shift=(offset - mean * gain).reshape(shape))


def as_values(step, given, like):
    """Returns a constant as values that a node computes, so that training finds it as a bias and not as a factor. The node reads
    a tensor, which it multiplies by 0."""
    return affine(step, like, scale=np.zeros_like(given, np.float64), shift=given.astype(np.float64))


def _per_value(step, tensor, constant):
    """Broadcasts a tensor and a constant against each other. Returns the tensor in the common shape, and the constant as an
    array with one number for each value of a sample."""
    dims, batch = common(step, tensor, constant)
    tensor = broadcast(step, tensor, dims, batch)
    return tensor, np.broadcast_to(constant, dims).reshape(-1)


def affine(step, tensor, scale=None, shift=None):
    """Returns `tensor * scale + shift`. `scale` and `shift` are constants that are broadcast against the tensor. If one is None,
    its operation is left out."""
    for constant in (scale, None if shift is None else np.where(np.isneginf(shift), 0, shift)):  # masks hold -inf
        if constant is not None and not np.isfinite(constant).all():
            raise ModelError(f"{step.title}: one of its constants is infinite or NaN")
    if scale is not None and ((scale != 0) & (np.abs(scale) < _LEAST)).any():
        raise ModelError(f"{step.title}: multiplies by less than 2^-126, a subnormal number, which the core takes for 0; write 0")
    if scale is not None:
        scale = in_range(scale)
        if shift is None and _is_one_factor(step, tensor, scale):
            factor = np.full((1, 1, tensor.source.shape[2]), scale.flat[0])
            return tensor.of(Affine(**step.titles, shape=tensor.source.shape, source=tensor.source, scale=factor))
        tensor, scale = _per_value(step, tensor, scale)
    if shift is not None:
        shift, dims = in_range(shift), tensor.dims
        tensor, shift = _per_value(step, tensor, shift)
        if scale is not None and tensor.dims != dims:
            scale = np.broadcast_to(scale.reshape(dims), tensor.dims).reshape(-1)
    tensor = everything(step, tensor)

    def placed(values):
        if values is None:
            return None
        array = np.empty(tensor.size)
        array[tensor.index] = values
        return per_channel(array.reshape(tensor.source.shape), tensor.source.shape)

    return tensor.of(
        Affine(
            **step.titles,
            shape=tensor.source.shape,
            source=tensor.source,
            loose=tensor.source.loose,
            scale=placed(scale),
            shift=placed(shift),
        )
    )


def _of_norm(step, tensor, constant):
    """Returns the product with the scale of a normalization that a model writes in small operators, or the sum with its shift, as
    weights of a stage. Returns None for other operations."""
    node = tensor.source
    if step.operator == "Mul" and _is_normalised(node):
        return trained_affine(step, tensor, constant, None)
    taps = node.parts[0].taps if isinstance(node, Linear) and node.bias is None else ()
    if step.operator != "Add" or len(taps) != 1 or taps[0].groups != node.shape[2] or not _is_normalised(taps[0].source):
        return None
    scale = taps[0].weights.reshape(-1)[tensor.index % node.shape[2]].reshape(tensor.dims)
    return trained_affine(step, replace(tensor, source=taps[0].source), scale, constant)


def _is_normalised(node):
    return getattr(getattr(node, "times", None), "function", None) == Function("inverse_root")


def trained_affine(step, tensor, scale, shift):
    """Returns `tensor * scale + shift` with weights that training finds. `shift` may be None. Returns None if the weights differ
    from position to position."""
    tensor = everything(step, tensor)
    scale, shift = by_channel(tensor, scale), None if shift is None else by_channel(tensor, shift)
    if any(one is not None and one.shape[:2] != (1, 1) for one in (scale, shift)):
        return None
    shape, bias = tensor.source.shape, None if shift is None else shift.reshape(-1)
    part = SumRegion((Tap(tensor.source, scale[None], groups=shape[2]),), shape[:2])
    return tensor.of(Linear(**step.titles, shape=shape, parts=(part,), bias=bias))


def by_channel(tensor, values):
    shape = tensor.source.shape
    return per_channel(np.broadcast_to(values, tensor.dims).reshape(-1)[np.argsort(tensor.index)].reshape(shape), shape)


def in_range(constant):
    """Returns a constant in which the largest magnitude of binary32, as masks have it, is that of bfloat16: there it is
    infinite."""
    return np.where(np.abs(constant) == np.finfo(np.float32).max, np.sign(constant) * LARGEST, constant)


def _is_one_factor(step, tensor, scale):
    """Returns True if one number scales some values of a node, such as the queries in a common dense layer: then it may scale the
    whole node, and no value moves."""
    return (
        isinstance(tensor.source, (Affine, Linear))
        and tensor.size < np.prod(tensor.source.shape)
        and (scale == scale.flat[0]).all()
        and common(step, tensor, scale)[0] == tensor.dims
    )


# Two tensors


def broadcast(step, tensor, dims, batch):
    """Returns a tensor broadcast to the shape `dims`, with `batch` as its batch axis."""
    if dims == tensor.dims:
        return tensor
    limited(step, *dims)
    return tensor.permuted(np.broadcast_to(tensor.sample, dims), batch)


def _in_blocks(step, one, two, operator):
    """Computes the sum or difference of two tensors, of which one has a single position. A grouped tap gathers the values of the
    other tensor at this position. Returns None if these values do not split into groups."""
    for fixed, moved in ((one, two), (two, one)):
        if isinstance(moved.source, Joint) or isinstance(fixed.source, Joint) or fixed.source.shape[:2] != (1, 1):
            continue
        if not has_all(fixed.index, fixed.source.shape[2]):
            continue
        found = block_select(moved.source, places_in(fixed, moved).reshape(-1))
        if found is None:
            continue
        taps = [*identity(fixed.source).taps, found]
        if operator == "Sub":
            place = 1 if moved is two else 0
            taps[place] = replace(taps[place], weights=-taps[place].weights, select=None)
        return fixed.of(Linear(**step.titles, shape=fixed.source.shape, parts=(SumRegion(tuple(taps), (1, 1)),)))
    return None


def _is_finer(tensor):
    """Returns True if a tensor has more pixels than its node has positions. Then only a tap that reads this node can compute a
    result in the layout of the tensor."""
    if len(tensor.dims) != 4 or tensor.dims[0] != 1 or isinstance(tensor.source, Joint):
        return False
    found = phases_of(tensor.source, tensor.sample[0])
    return found is not None and found.factor != (1, 1) and np.unique(tensor.index).size == tensor.size


def places_in(one, two):
    """Returns the index map of tensor `two`, as (channel, y, x), with its values in the order in which the node of tensor `one`
    has them. Tensor `one` must contain every value of its node."""
    height, width, channels = one.source.shape
    places = np.empty_like(two.index)
    places[one.index] = two.index
    return places.reshape(height, width, channels).transpose(2, 0, 1)


def added(step, one, two):
    """Returns the elementwise sum of two tensors of the same broadcast shape."""
    return _of_tensors(replace(step, arguments=[one, two]), "Add")


def product(step, one, two):
    """Returns the elementwise product of two tensors of the same broadcast shape."""
    return _of_tensors(replace(step, arguments=[one, two]), "Mul")


def _of_tensors(step, operator=None):
    operator = operator or step.operator
    one, two = step.arguments
    dims, batch = common(step, one, two)
    if one.dims != dims and two.dims == dims and operator != "Sub":
        one, two = two, one
    one, two = (broadcast(step, tensor, dims, batch) for tensor in (one, two))
    if operator != "Sub" and _is_finer(two) and not _is_finer(one):
        one, two = two, one
    alike, one = two is one, everything(step, one)
    two = one if alike else two
    # The index map of the second tensor in the layout of the first tensor's node.
    height, width, channels = one.source.shape
    places = places_in(one, two)
    if operator == "Mul":
        if (places == places[:1]).all():  # one factor for each position
            places = places[:1]
        same = (
            not isinstance(two.source, Joint)
            and two.source.shape == (height, width, len(places))
            and np.array_equal(places, whole(two.source))
        )
        other = two.source if same else copied(step, two, places)
        node = Linear(**step.titles, shape=one.source.shape, parts=(identity(one.source),), times=other)
        return one.of(node)
    seen = view(two, places)
    place = None if seen is None else slide(seen, (height, width), (1, 1))
    if place is None and (found := _in_blocks(step, one, two, operator)):
        return found
    if place is None:
        other = copied(step, two, places)
        seen, place = view(two.of(other, whole(other)), whole(other)), {}
    limited(step, seen.source.shape[2], channels)
    second = select(seen.source, seen.channels, **place)
    if operator == "Sub":
        second = replace(second, weights=-second.weights, select=None)
    part = SumRegion((*identity(one.source).taps, second), (height, width))
    return one.of(Linear(**step.titles, shape=one.source.shape, parts=(part,)))

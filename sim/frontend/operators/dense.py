"""Matrix products of ONNX: MatMul, Gemm, FusedGemm and Einsum."""

from dataclasses import replace
from math import prod

import numpy as np

from ...data.printable import printable
from ...fusion.nodes import Joint, Linear, SumRegion, Tap
from ...ir.errors import ModelError
from ...ir.tiles import tiles_of
from ..index.strided import LANES, copying_cost, strided
from ..index.values import BatchFixed, SymbolicTensor, limited, show, whole
from ..index.views import arranged, arrangement, in_place, positions_in_order, product_in_blocks, tap
from ..registry import LINEAR, MICROSOFT, operator
from .activations import apply_operator
from .elementwise import affine
from .tensor_products import tensor_product

__all__ = ["multiplied"]


@operator("MatMul", group=LINEAR, joins=True, counts_from_end=True)
def matrices(step, tensor):
    """Handles MatMul of two tensors, or of a tensor and constant weights."""
    if all(isinstance(value, SymbolicTensor) for value in step.arguments):
        return tensor_product(step, *step.arguments)
    first = step.arguments[0]
    if isinstance(first, SymbolicTensor) or first.ndim != 2 or len(tensor.dims) < 2 or tensor.batch in _last_two(tensor):
        return linear(step, tensor)
    transposed = tensor.permuted(tensor.sample.swapaxes(-1, -2))
    result = linear(replace(step, arguments=[transposed, first.T]), transposed)
    return result.permuted(result.sample.swapaxes(-1, -2))


def _last_two(tensor):
    return len(tensor.dims) - 2, len(tensor.dims) - 1


_GEMM = ("alpha", "beta", "transA", "transB")


@operator("Gemm", group=LINEAR, counts_from_end=True, attributes=_GEMM)
def linear(step, tensor):
    """Handles Gemm, and MatMul of a tensor and constant weights."""
    gemm = step.operator in ("Gemm", "FusedGemm")
    if not isinstance(step.arguments[0], SymbolicTensor):
        raise ModelError(f"{step.title}: the weights are the left operand; only values x weights is supported")
    if isinstance(step.arguments[1], SymbolicTensor):
        raise ModelError(f"{step.title}: multiplies two tensors, which only MatMul supports; its weights must be constant")
    weights = step.arguments[1]
    weights = weights if weights.dtype == np.float32 else weights.astype(np.float64)  # a view of the file's bytes, if possible
    if gemm and (weights.ndim != 2 or len(tensor.dims) != 2):
        raise ModelError(f"{step.title}: Gemm needs matrices, not {show(tensor)} and {show(weights.shape)}")
    if gemm and step.attributes.get("transA", 0):
        tensor = tensor.permuted(tensor.sample.T, None if tensor.batch is None else 1 - tensor.batch)
    if gemm and step.attributes.get("transB", 0):
        weights = weights.T
    if len(tensor.dims) == 1 and weights.ndim > 2:
        return _vector_by_matrices(step, tensor, weights)
    vector = weights.ndim == 1
    if weights.ndim == 0 or prod(weights.shape[:-2]) != 1 or not tensor.dims:
        raise ModelError(f"{step.title}: {show(tensor)} and weights of {show(weights.shape)} are not values and one matrix")
    extra = max(0, weights.ndim - max(2, len(tensor.dims)))
    weights = weights.reshape(-1, 1) if vector else weights.reshape(weights.shape[-2:])
    inputs, outputs = weights.shape
    if tensor.batch == len(tensor.dims) - 1:
        _along_batch(step, tensor, weights)
    if tensor.dims[-1] != inputs:
        raise ModelError(f"{step.title}: {show(tensor)} and weights of {show(weights.shape)} do not multiply")
    if outputs == 0:
        raise ModelError(f"{step.title}: has no outputs")
    alpha = step.attributes.get("alpha", 1.0) if gemm else 1.0
    result = multiplied(step, tensor, weights)
    dims = tensor.dims[:-1] if vector else (1,) * extra + tensor.dims[:-1] + (outputs,)
    result = replace(result, dims=dims, batch=None if tensor.batch is None else tensor.batch + extra)
    if alpha != 1.0:
        result = affine(step, result, scale=np.array(alpha))
    beta = step.attributes.get("beta", 1.0)
    if gemm and step.argument(2) is not None and beta != 0:
        if isinstance(step.arguments[2], SymbolicTensor):
            raise ModelError(f"{step.title}: its bias must be constant")
        addend = step.arguments[2].astype(np.float64)
        result = affine(step, result, shift=addend if beta == 1.0 else addend * beta)
        if result.dims != dims:
            raise ModelError(f"{step.title}: its bias of {show(addend.shape)} does not fit its result of {show(dims)}")
    return result


def _vector_by_matrices(step, tensor, weights):
    """Returns the products of a vector with several constant matrices, side by side as columns of one matrix."""
    columns = np.moveaxis(weights, -2, 0)
    result = linear(replace(step, arguments=[tensor, columns.reshape(len(columns), -1)]), tensor)
    return result.permuted(result.sample.reshape(columns.shape[1:]))


def multiplied(step, tensor, weights):
    """Returns the product of a tensor's last axis with constant weights (inputs, outputs)."""
    whole_sample = tensor.size == len(weights) and not _at_one_position(tensor)
    result = _of_sample(step, tensor, weights) if whole_sample else _of_positions(step, tensor, weights)
    return result.permuted(result.index.reshape(*tensor.dims[:-1], -1))


def _at_one_position(tensor):
    """Returns True if the node of a tensor has several positions, but all values of the tensor are at one of them."""
    positions = tensor.index // tensor.source.shape[2]
    return not isinstance(tensor.source, Joint) and prod(tensor.source.shape[:2]) > 1 and np.unique(positions).size == 1


def _along_batch(step, tensor, weights):
    """Raises the error for a matrix product that sums over samples. If the batch size is open, the error is BatchFixed with the
    only batch size that fits the weights."""
    text = f"{step.title}: adds up values of different samples: {show(tensor)} times weights of {show(weights.shape)}"
    if tensor.is_open and len(weights) % tensor.dims[-1] == 0:
        raise BatchFixed(text, len(weights) // tensor.dims[-1])
    raise ModelError(text)


def _of_sample(step, tensor, weights):
    """Returns a dense layer over all values of a tensor. The node of the layer has one position, and a kernel over all positions
    of the source that have a value. The values are copied to a vector first, if most of the values at these positions are
    others."""
    if _is_scattered(tensor, weights.shape[1]):
        node = strided(step, tensor.source, tensor.index.reshape(-1, 1, 1))
        tensor = tensor.of(node, np.arange(tensor.size).reshape(tensor.dims))
    taps, first = [], 0
    for source in _sources(tensor):
        there = np.flatnonzero((tensor.index >= first) & (tensor.index < first + prod(source.shape)))
        (top, left), size, places = _box(source, tensor.index[there] - first)
        first += prod(source.shape)
        limited(step, prod(size), weights.shape[1])
        kernel = _of_places(weights, prod(size), places, there)
        taps.append(Tap(source, kernel.reshape(*size, -1), padding=(-top, -left)))
    node = Linear(**step.titles, shape=(1, 1, weights.shape[1]), parts=(SumRegion(tuple(taps), (1, 1)),))
    return tensor.of(node, np.arange(weights.shape[1]).reshape(tensor.dims[:-1] + (-1,)))


def _sources(tensor):
    return tensor.source.sources if isinstance(tensor.source, Joint) else (tensor.source,)


def _box(source, places):
    """Returns the smallest box of a source that has all values at `places`: its corner (y, x), its (height, width, channels), and
    the places in the box. It has all channels."""
    if not len(places):
        return (0, 0), source.shape, places
    y, x, channel = np.unravel_index(places, source.shape)
    corner, size = (y.min(), x.min()), (np.ptp(y) + 1, np.ptp(x) + 1, source.shape[2])
    return tuple(map(int, corner)), tuple(map(int, size)), np.ravel_multi_index((y - corner[0], x - corner[1], channel), size)


def _is_scattered(tensor, outputs):
    """Returns True if a copy of the values to a vector takes less time than zero weights for the values around them."""
    first, values, tiles = 0, 0, 0
    for source in _sources(tensor):
        own = tensor.index[(tensor.index >= first) & (tensor.index < first + prod(source.shape))] - first
        _, (height, width, channels), _ = _box(source, own)
        values += height * width * channels
        tiles += height * width * tiles_of(channels, LANES)
        first += prod(source.shape)
    spare = (tiles - tiles_of(tensor.size, LANES)) * tiles_of(outputs, LANES) * LANES
    return 2 * tensor.size <= values and (tensor.index >= 0).all() and spare > 2 * copying_cost(tensor.source, tensor.index[None])


def _of_places(weights, size, places, there):
    """Returns the weights of `size` values, of which those at `places` have the rows `there` of `weights`. In order, these are
    the weights themselves, which all steps of a recurrent layer share."""
    if np.array_equal(places, np.arange(size)) and np.array_equal(there, places) and len(weights) == size:
        return weights
    kernel = np.zeros((size, weights.shape[1]))
    if len(np.unique(places)) == len(places):
        kernel[places] = weights[there]
    else:
        np.add.at(kernel, places, weights[there])
    return kernel


def _of_positions(step, tensor, weights):
    """Returns a dense layer over the last axis, applied at each position of the other axes: a convolution with a 1 x 1 kernel."""
    last = len(tensor.dims) - 1
    for seen, roles in arranged(tensor, last=last):  # noqa: B007 - read after the loop
        found = _at_each(step, seen, weights)
        if found is not None:
            break
    else:
        if (node := positions_in_order(tensor)) is not None:
            size, one = node.shape[:2], Tap(node, weights[None, None])
            node = Linear(**step.titles, shape=(*size, weights.shape[1]), parts=(SumRegion((one,), size),))
            return tensor.of(node, np.arange(prod(node.shape)).reshape(*tensor.dims[:-1], -1))
        found = product_in_blocks(step, tensor, weights)
        if found:
            return tensor.of(found[0], found[1].reshape(*tensor.dims[:-1], -1))
        tensor, seen, roles = arrangement(step, tensor, last=last)
        found = _at_each(step, seen, weights)
    one, rows, columns = found
    size = len(rows), len(columns)
    node = Linear(**step.titles, shape=(*size, weights.shape[1]), parts=(SumRegion((one,), size),))
    return tensor.of(node, in_place(whole(node)[np.ix_(range(weights.shape[1]), rows, columns)], tensor.dims, roles))


def _at_each(step, seen, weights):
    """Returns `(tap, rows, columns)` of a dense layer at each position of a View. `rows` and `columns` are the places of its
    sums, in the order of the view. Returns None if the View must be copied first."""
    rows, columns = range(len(seen.rows)), range(len(seen.columns))
    size = len(rows), len(columns)
    one = tap(step, seen, weights[None, None], size)
    if one is None and seen.has_every_position:  # computed in the order of the node
        one = tap(step, replace(seen, rows=np.arange(size[0]), columns=np.arange(size[1])), weights[None, None], size)
        rows, columns = seen.rows, seen.columns
    return None if one is None else (one, rows, columns)


@operator(
    "FusedGemm",
    group=LINEAR,
    domain=MICROSOFT,
    on_constants=False,
    counts_from_end=True,
    attributes=(*_GEMM, "activation", "activation_alpha", "activation_beta", "activation_gamma"),
)
def fused(step, tensor):
    """Handles FusedGemm of onnxruntime: Gemm followed by an activation function."""
    function = step.attributes.get("activation", b"").decode("utf-8", "replace")
    result = linear(step, tensor)
    if not function:
        return result
    # alpha and beta are parameters of the product; the function's parameters have the prefix activation_.
    own = {
        name: step.attributes[f"activation_{name}"]
        for name in ("alpha", "beta", "gamma")
        if f"activation_{name}" in step.attributes
    }
    return apply_operator(replace(step, attributes=own), result, function)


@operator("Einsum", group=LINEAR, attributes=("equation",))
def einsum(step, tensor):
    """Handles an Einsum that is a matrix product with constant weights, such as bk,kn->bn, or btk,khd->bthd for the heads of an
    attention. The weights may be the first or the second operand."""
    equation = step.attributes["equation"].decode("utf-8", "replace").replace(" ", "")
    left, arrow, result = equation.partition("->")
    if not arrow:  # Default of ONNX: letters that occur once, in alphabetical order.
        result = "".join(sorted(letter for letter in {*left} - {",", "."} if left.count(letter) == 1))
    terms = dict(zip(map(id, step.arguments), left.split(",")))
    weights = next((value for value in step.arguments if value is not tensor), np.empty(0))
    values, matrix = terms[id(tensor)], terms.get(id(weights), "")
    kept, inner, outer = (
        "".join(letter for letter in letters if (letter in others) == common)
        for letters, others, common in ((values, matrix, False), (values, matrix, True), (matrix, values, False))
    )
    fits = "." not in left and left.count(",") == 1 and isinstance(weights, np.ndarray) and inner and outer
    fits = fits and all(len(term) == len({*term}) for term in (values, matrix, result)) and sorted(result) == sorted(kept + outer)
    if not fits or tensor.batch is not None and values[tensor.batch] in inner:
        raise ModelError(
            f"{step.title}: its equation {printable(equation, 60)} is not a product of a tensor with constant weights, as in "
            "bk,kn->bn or btk,khd->bthd; write it with Transpose, MatMul, Mul and ReduceSum"
        )
    weights = weights.transpose([matrix.index(letter) for letter in inner + outer])
    sizes = weights.shape[len(inner) :]
    tensor = _in_order(tensor, values, kept + inner)
    tensor = tensor.permuted(tensor.sample.reshape(*tensor.dims[: len(kept)], -1))
    found = linear(replace(step, arguments=[tensor, weights.reshape(tensor.dims[-1], -1)]), tensor)
    return _in_order(found.permuted(found.sample.reshape(*found.dims[:-1], *sizes)), kept + outer, result)


def _in_order(tensor, letters, order):
    axes = [letters.index(letter) for letter in order]
    return tensor.permuted(tensor.sample.transpose(axes), None if tensor.batch is None else axes.index(tensor.batch))

"""Attention, RotaryEmbedding and Swish: operators of opsets 23 and 24, by the operators that ONNX defines them with."""

from dataclasses import replace
from functools import partial

import numpy as np

from ...functions.functions import Function
from ...ir.errors import ModelError
from ..index.values import SymbolicTensor, show
from ..registry import FUNCTIONS, LINEAR, operator
from .activations import apply_function
from .concatenation import concat
from .elementwise import added, affine, product
from .lookups import looked_up
from .masks import masked_sum
from .softmax import softmax
from .tensor_products import tensor_product

__all__ = []


@operator("Swish", group=FUNCTIONS, counts_from_end=True, attributes=("alpha",))
def swish(step, tensor):
    """Handles Swish, x * sigmoid(alpha * x)."""
    alpha = float(step.attributes.get("alpha", 1.0))
    if alpha == 0:
        return affine(step, tensor, scale=np.array(0.5))
    if alpha == 1:
        return apply_function(step, tensor, Function("silu"))
    scaled = apply_function(step, affine(step, tensor, scale=np.array(alpha)), Function("silu"))
    return affine(step, scaled, scale=np.array(1 / alpha))


@operator("SwiGLU", group=FUNCTIONS, joins=True, counts_from_end=True, attributes=("alpha",))
def gated(step, tensor):
    """Handles SwiGLU, the product of a Swish and a second tensor."""
    gate, other = step.arguments
    if not (isinstance(gate, SymbolicTensor) and isinstance(other, SymbolicTensor) and gate.dims == other.dims):
        raise ModelError(f"{step.title}: its inputs must be two tensors of one shape")
    return product(step, swish(step, gate), other)


_HEADS = ("q_num_heads", "kv_num_heads")
_WINDOW = ("left_window_size", "right_window_size")


@operator(
    "Attention",
    group=LINEAR,
    joins=True,
    on_constants=False,
    attributes=(
        *("is_causal", "scale", "softcap", "qk_matmul_output_mode", *_HEADS, *_WINDOW),
        "softmax_precision",  # only affects rounding
    ),
)
def attention(step, tensor):
    """Handles Attention, with all its outputs."""
    queries, keys, values = (_in_heads(step, number) for number in range(3))
    past = [step.argument(4), step.argument(5)]
    if any(isinstance(one, np.ndarray) for one in past) or (past[0] is None) != (past[1] is None):
        raise ModelError(f"{step.title}: past_key and past_value must both be computed, or both be left out")
    offset = 0
    if past[0] is not None:
        offset = past[0].dims[-2]
        keys, values = (_beside(step, [old, new], 2) for old, new in zip(past, (keys, values)))
    present = [keys, values]
    if queries.dims[1] % keys.dims[1] or keys.dims[1] != values.dims[1]:
        raise ModelError(f"{step.title}: {queries.dims[1]} heads of queries do not fit {keys.dims[1]} and {values.dims[1]}")
    keys, values = (one.permuted(one.sample.repeat(queries.dims[1] // one.dims[1], axis=1)) for one in (keys, values))

    scale = float(step.attributes.get("scale", queries.dims[3] ** -0.5))
    if not 0 <= scale < np.inf:
        raise ModelError(f"{step.title}: its scale is {scale:g}; it must not be negative")
    scores = tensor_product(step, queries, keys.permuted(keys.sample.swapaxes(2, 3)))
    kinds = [scores := affine(step, scores, scale=np.array(scale))]
    cap = float(step.attributes.get("softcap", 0.0))
    if cap > 0:
        capped = apply_function(step, affine(step, scores, scale=np.array(1 / cap)), Function("tanh"))
        scores = affine(step, capped, scale=np.array(cap))
    kinds.append(scores)
    scores, dead = _biased(step, scores, offset)
    kinds.append(scores)
    shares = softmax(replace(step, attributes={"axis": -1}, opset=13), scores, "softmax")
    if dead is not None:
        shares = affine(step, shares, scale=1.0 - dead)
    kinds.append(shares)
    result = tensor_product(step, shares, values)
    if len(step.arguments[0].dims) == 3:
        result = result.permuted(result.sample.transpose(0, 2, 1, 3).reshape(*step.arguments[0].dims[:2], -1))
    mode = step.attributes.get("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(kinds):
        raise ModelError(f"{step.title}: its qk_matmul_output_mode is {mode}; 0 to {len(kinds) - 1} are supported")
    return [result, *present, kinds[mode]]


def _in_heads(step, number):
    tensor, what = step.arguments[number], ("queries", "keys", "values")[number]
    if not isinstance(tensor, SymbolicTensor) or tensor.integer:
        raise ModelError(f"{step.title}: its {what} must be computed, and be floating-point")
    if tensor.batch not in (0, None) or len(tensor.dims) not in (3, 4) or tensor.batch == 0 and tensor.dims[0] != 1:
        raise ModelError(
            f"{step.title}: its {what} of shape {show(tensor)} are not (batch, positions, values) or (batch, heads, ...)"
        )
    if len(tensor.dims) == 4:
        return tensor
    batch, positions, size = tensor.dims
    heads = step.attributes.get(_HEADS[number > 0], 0)
    if heads < 1 or size % heads:
        raise ModelError(f"{step.title}: {what} of {size} values do not divide into {heads} heads; set {_HEADS[number > 0]}")
    return tensor.permuted(tensor.sample.reshape(batch, positions, heads, -1).transpose(0, 2, 1, 3))


def _beside(step, tensors, axis):
    return concat(replace(step, arguments=tensors, attributes={"axis": axis}), tensors[0])


def _biased(step, scores, offset):
    """Returns the scores with all masks added, and a mask of the rows that attend to nothing, whose results are 0; or None."""
    mask, filled = step.argument(3), step.argument(6)
    count, have = scores.dims[2:]
    bias = np.zeros((1, 1, count, have))
    tensors = [scores]
    if isinstance(mask, SymbolicTensor):
        if mask.integer or mask.dims[-1:] != (have,):
            raise ModelError(f"{step.title}: its attn_mask must be constant, or floating-point numbers for all {have} keys")
        tensors.append(mask)
    elif mask is not None:
        mask = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        missing = have - mask.shape[-1]
        bias = bias + np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf)
    if filled is not None:
        if isinstance(filled, SymbolicTensor) or scores.batch is not None and np.unique(filled).size > 1:
            raise ModelError(f"{step.title}: its nonpad_kv_seqlen must be constant, and the same for all samples")
        filled = filled[:1] if scores.batch is not None else filled
        filled = filled.reshape(-1, 1, 1, 1)
        bias = np.where(np.arange(have) < filled, bias, -np.inf)
        offset = filled - count
    ahead = np.arange(have) - np.arange(count)[:, None] - offset  # positions from a query to a key
    left, right = (step.attributes.get(name, -1) for name in _WINDOW)
    for allowed, applies in (
        (ahead <= 0, step.attributes.get("is_causal", 0)),
        (ahead >= -left, left >= 0),
        (ahead <= right, right >= 0),
    ):
        bias = np.where(allowed, bias, -np.inf) if applies else bias
    dead = np.isneginf(bias).all(axis=-1, keepdims=True)
    bias = np.where(dead, 0.0, bias)
    return masked_sum(step, tensors, [bias] if bias.any() else []), dead if dead.any() else None


@operator(
    "RotaryEmbedding",
    group=LINEAR,
    joins=True,
    on_constants=False,
    attributes=("interleaved", "num_heads", "rotary_embedding_dim"),
)
def rotary(step, tensor):
    """Handles RotaryEmbedding with constant caches; the position ids may be integers of an input."""
    caches, positions = step.arguments[1:3], step.argument(3)
    if step.arguments[0] is not tensor or any(isinstance(cache, SymbolicTensor) for cache in caches):
        raise ModelError(f"{step.title}: its cos_cache and sin_cache must be constant")
    if tensor.batch not in (0, None) or len(tensor.dims) not in (3, 4) or tensor.batch == 0 and tensor.dims[0] != 1:
        raise ModelError(f"{step.title}: {show(tensor)} is not (batch, positions, values) or (batch, heads, positions, values)")
    sample = tensor.sample
    heads = step.attributes.get("num_heads", 0)
    if sample.ndim == 3:
        if heads < 1 or sample.shape[2] % heads:
            raise ModelError(f"{step.title}: {sample.shape[2]} values do not divide into {heads} heads; set num_heads")
        sample = sample.reshape(*sample.shape[:2], heads, -1)
    else:
        sample = sample.transpose(0, 2, 1, 3)
    depth = sample.shape[3]
    size = step.attributes.get("rotary_embedding_dim", 0) or depth
    if size % 2 or not 0 < size <= depth:
        raise ModelError(f"{step.title}: rotates {size} of {depth} values; it must be an even number of these")
    if any(cache.shape[-1] != size // 2 for cache in caches):
        raise ModelError(f"{step.title}: its caches give {show(caches[0].shape)}, not (batch, positions, {size // 2})")
    # Each value times the cosine, and the other value of its pair times the sine, which is negative for the first of the pair.
    pairs = np.arange(size).reshape(2, -1) if not step.attributes.get("interleaved", 0) else np.arange(size).reshape(-1, 2).T
    cosine, sine = (np.full((*cache.shape[:-1], depth), fill) for cache, fill in zip(caches, (1.0, 0.0)))
    for own, sign in zip(pairs, (-1.0, 1.0)):
        cosine[..., own], sine[..., own] = caches[0], sign * caches[1]
    others = np.arange(depth)
    others[pairs] = pairs[::-1]
    rows = tensor.permuted(sample)
    factors = (_of_positions(step, cache, positions, tensor, depth) for cache in (cosine, sine))
    rotated = added(step, *map(partial(_times, step), (rows, rows.permuted(sample[..., others])), factors))
    if len(tensor.dims) == 3:
        return rotated.permuted(rotated.sample.reshape(tensor.dims))
    return rotated.permuted(rotated.sample.transpose(0, 2, 1, 3))


def _of_positions(step, cache, positions, tensor, size):
    if isinstance(positions, SymbolicTensor):
        found = looked_up(step, cache, positions)
    else:
        found = cache.astype(np.float64)
        found = found if positions is None else found[positions]
    shape = found.dims if isinstance(found, SymbolicTensor) else found.shape
    if len(shape) != 3 or shape[2] != size:
        raise ModelError(f"{step.title}: its caches give {show(shape)}, not (batch, positions, {size})")
    if isinstance(found, SymbolicTensor):
        return found.permuted(found.sample[:, :, None])
    if tensor.batch is not None:
        if (found != found[:1]).any():
            raise ModelError(f"{step.title}: its constant positions differ from sample to sample")
        found = found[:1]
    return found[:, :, None]


def _times(step, tensor, factor):
    if isinstance(factor, SymbolicTensor):
        return product(step, tensor, factor)
    return affine(step, tensor, scale=factor)

"""Attention between positions: written in small operators, and as one node."""

import numpy as np
from onnx import TensorProto

from .drawing import Value, block

__all__ = []


def _projected(g, x, width):
    """Appends a dense layer of positions (tokens, values)."""
    made = g.value("MatMul", (x.shape[0], width), x, g.weights(x.shape[1], width, inputs=x.shape[1]))
    return g.value("Add", made.shape, made, g.normal(width)) if g.chance(0.4) else made


def _mask(g, rows, columns):
    """Returns a constant mask to add: causal or random, by minus infinity or a large negative number. No row is masked
    completely."""
    allowed = np.tril(np.ones((rows, columns), bool), columns - rows) if g.chance(0.5) else g.rng.random((rows, columns)) < 0.7
    allowed[np.arange(rows), g.rng.integers(0, columns, rows)] = True
    return np.where(allowed, 0, g.choose(-np.inf, -1e9, np.finfo(np.float32).min)).astype(np.float32)


def _heads(g, x, heads):
    """Appends a Reshape and a Transpose to (heads, tokens, values)."""
    return g.transposed(g.reshaped(x, x.shape[0], heads, x.shape[1] // heads), 1, 0, 2)


def _tensors(g, x):
    """Returns queries, keys and values (tokens, values), and the number of heads."""
    heads = g.choose(1, 1, 2, 3)
    width, each = heads * g.integer(1, 5), heads * g.integer(1, 4)
    other = g.choose(x, *(one for one in g.values if len(one.shape) == 2))
    return _projected(g, x, width), _projected(g, other, width), _projected(g, other, each), heads


@block(2, share=2)
def written_attention(g, x):
    """Attention of one or several heads, with or without a mask and an output layer."""
    queries, keys, values, heads = _tensors(g, x)
    width, each = queries.shape[1], values.shape[1]
    if heads > 1:
        queries, keys, values = (_heads(g, one, heads) for one in (queries, keys, values))
    count = len(queries.shape)
    keys = g.transposed(keys, *range(count - 2), count - 1, count - 2)
    scores = g.value("MatMul", (*queries.shape[:-1], keys.shape[-1]), queries, keys)
    scores = g.value(
        *g.choose(("Mul", scores.shape, scores, float((width // heads) ** -0.5)), ("Div", scores.shape, scores, 2.0))
    )
    if g.chance(0.5):
        scores = g.value("Add", scores.shape, scores, _mask(g, *scores.shape[-2:]))
    shares = g.value("Softmax", scores.shape, scores, axis=g.choose(-1, count))
    made = g.value("MatMul", (*shares.shape[:-1], values.shape[-1]), shares, values)
    if heads > 1:
        made = g.reshaped(g.transposed(made, 1, 0, 2), x.shape[0], each)
    if g.chance(0.5):
        made = _projected(g, made, x.shape[1])
        made = g.value("Add", x.shape, x, made)
    return made


@block(2, opset=23, share=2)
def attention_node(g, x):
    """The operator Attention, with masks, causal order, groups of heads and soft caps."""
    queries, keys, values, heads = _tensors(g, x)
    attributes = {"q_num_heads": heads, "kv_num_heads": heads}
    if g.chance(0.3):
        attributes["scale"] = g.choose(0.5, 1.0)
    if g.chance(0.2):
        attributes["softcap"] = 2.0
    if g.chance(0.3):
        attributes["is_causal"] = 1
    mask = [_mask(g, queries.shape[0], keys.shape[0])] if g.chance(0.3) and "is_causal" not in attributes else []
    return g.value("Attention", (queries.shape[0], values.shape[1]), queries, keys, values, *mask, **attributes)


@block(2, opset=23, share=2)
def rotary(g, x):
    """RotaryEmbedding with constant caches."""
    tokens, width = x.shape
    heads = g.divisor(width)
    each = width // heads
    if each % 2:
        return None
    angles = g.normal(tokens, each // 2)
    if g.chance(0.3):
        return _written_rotary(g, x, angles, heads)
    caches, rest = (np.cos(angles), np.sin(angles)), []
    if g.batch is None or g.chance(0.3):  # an input selects rows of the caches
        rest = [g.input(tokens, kind=TensorProto.INT64, rows=tokens)]
    else:
        caches = [np.broadcast_to(one, (g.batch, *angles.shape)).copy() for one in caches]
    return g.value("RotaryEmbedding", x.shape, x, *caches, *rest, num_heads=heads, interleaved=g.integer(0, 1))


def _written_rotary(g, x, angles, heads):
    """Appends a rotation of the two halves of each head, as models without the operator write it."""
    tokens, width = x.shape
    half = angles.shape[1]
    parted = g.reshaped(x, tokens, heads, 2 * half)
    one, two = (
        Value(g.node("Slice", parted, *(np.array([number]) for number in (first, first + half, 3))), (tokens, heads, half))
        for first in (0, half)
    )
    back = g.value("Neg", two.shape, two)
    swapped = g.value("Concat", parted.shape, back, one, axis=-1)
    cosine, sine = (np.tile(one[:, None], (1, 1, 2)).astype(np.float32) for one in (np.cos(angles), np.sin(angles)))
    turned = g.value("Add", parted.shape, g.node("Mul", parted, cosine), g.node("Mul", swapped, sine))
    return g.reshaped(turned, tokens, width)


@block(2)
def tensor_product(g, x):
    """A product of the tensor with its own transpose, or with another tensor's."""
    other = g.choose(x, *(one for one in g.values if len(one.shape) == 2 and one.shape[1] == x.shape[1]))
    made = g.value("MatMul", (x.shape[0], other.shape[0]), x, g.transposed(other, 1, 0))
    return g.value("Mul", made.shape, made, float(1 / x.shape[1]))


@block(2, opset=23)
def grouped_attention(g, x):
    """The operator Attention with fewer heads of keys than of queries, and with keys and values of earlier runs as state."""
    kept, groups, each = g.choose(1, 2), g.choose(1, 2), g.integer(1, 4)
    queries = _projected(g, x, kept * groups * each)
    keys, values = (_projected(g, x, kept * each) for _ in range(2))
    heads = {"q_num_heads": kept * groups, "kv_num_heads": kept}
    shape = (x.shape[0], kept * groups * each)
    if g.chance(0.4):
        return g.value("Attention", shape, queries, keys, values, **heads, is_causal=g.integer(0, 1))
    past = [g.input(kept, g.integer(1, 4), each)]
    past.append(g.input(*(one.dim_value for one in g.inputs[-1].type.tensor_type.shape.dim[1:])))
    made, *present = g.nodes_of("Attention", [queries, keys, values, None, *past], 3, **heads)
    g.outputs += present
    return Value(made, shape)


@block(2, share=1.5)
def attention_to_a_state(g, x):
    """Written attention to keys and values of earlier runs, and to the own ones, which are the next state."""
    count, width = g.integer(1, 4), g.integer(1, 6)
    queries, *own = (_projected(g, x, width) for _ in range(3))
    shape = (count + x.shape[0], width)
    keys, values = (Value(g.node("Concat", g.input(count, width), one, axis=1), shape) for one in own)
    g.outputs += [keys.name, values.name]
    scores = g.value("MatMul", (x.shape[0], shape[0]), queries, g.transposed(keys, 1, 0))
    scores = _masked(g, g.value("Mul", scores.shape, scores, float(width**-0.5)))
    return g.value("MatMul", (x.shape[0], width), g.node("Softmax", scores, axis=-1), values)


def _masked(g, scores):
    kind, low = g.choose("none", "constant", "Where", "product"), g.choose(-1e4, -1e9, float(np.finfo(np.float32).min))
    if kind == "none":
        return scores
    if kind == "constant":
        return g.value("Add", scores.shape, scores, _mask(g, *scores.shape[-2:]))
    allowed = g.node("Unsqueeze", g.input(scores.shape[-1], kind=TensorProto.BOOL, rows=2), np.array([1]))
    if kind == "Where":
        return g.value("Where", scores.shape, allowed, scores, low)
    hidden = g.node("Sub", 1.0, g.node("Cast", allowed, to=TensorProto.FLOAT))
    return g.value("Add", scores.shape, scores, g.node("Mul", hidden, low))

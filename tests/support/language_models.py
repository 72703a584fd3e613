"""A small character GPT as an ONNX model: embeddings, positions, causal attention of several heads, LayerNorm, GELU, logits."""

import numpy as np
from onnx import TensorProto

from onnx_models import Builder, weights


def norm(b, x, width):
    return b.node("LayerNormalization", [x, np.ones(width, np.float32), np.zeros(width, np.float32)], axis=-1)


def _dense(b, rng, x, inputs, outputs):
    product = b.node("MatMul", [x, weights(rng, outputs, inputs).T])
    return b.node("Add", [product, weights(rng, outputs)])


def attention(b, rng, x, tokens, width, heads, is_causal=True):
    each, split = width // heads, np.array([0, tokens, heads, width // heads])
    q, k, v = (b.node("Reshape", [_dense(b, rng, x, width, width), split]) for _ in range(3))
    q, v = (b.node("Transpose", [one], perm=[0, 2, 1, 3]) for one in (q, v))
    products = b.node("MatMul", [q, b.node("Transpose", [k], perm=[0, 2, 3, 1])])
    mask = np.where(np.tri(tokens) > 0, 0, -np.inf).astype(np.float32)
    b.node("Mul", [products, np.full((1,), each**-0.5, np.float32)])
    if is_causal:
        b("Add", mask)
    attended = b.node("Transpose", [b.node("MatMul", [b("Softmax", axis=-1), v])], perm=[0, 2, 1, 3])
    return _dense(b, rng, b.node("Reshape", [attended, np.array([0, tokens, width])]), width, width)


def language_model(rng, tokens=5, width=8, heads=2, letters=6, layers=1, is_tied=True):
    """Returns the :class:`onnx_models.Builder` of a model of token ids (batch, tokens), with logits (batch, tokens, letters). The
    head of a tied model is the transposed table of embeddings."""
    b = Builder(["batch", tokens], opset=20, kind=TensorProto.INT64)
    table = b.constant(weights(rng, letters, width) * np.float32(width**0.5), "table")
    x = b.node("Add", [b.node("Gather", [table, "x"], name="embedding"), b.constant(weights(rng, tokens, width), "places")])
    for _ in range(layers):
        x = b.node("Add", [x, attention(b, rng, norm(b, x, width), tokens, width, heads)])
        hidden = b.node("Gelu", [_dense(b, rng, norm(b, x, width), width, 2 * width + 1)])
        x = b.node("Add", [x, _dense(b, rng, hidden, 2 * width + 1, width)])
    x = norm(b, x, width)
    b.node("MatMul", [x, b.node("Transpose", [table], perm=[1, 0]) if is_tied else weights(rng, letters, width).T], name="head")
    return b

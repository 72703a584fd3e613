"""ONNX models that mix convolutions with attention, norms and products of two tensors."""

import numpy as np

from language_models import attention, norm
from onnx_models import Builder, weights


def _conv(b, rng, x, inputs, outputs, kernel=3, **attributes):
    attributes = {"pads": [kernel // 2] * 4, **attributes} if "strides" not in attributes else attributes
    return b.node("Conv", [x, weights(rng, outputs, inputs, kernel, kernel), weights(rng, outputs)], **attributes)


def tokens(b, x, width, count):
    """Returns (batch, positions, channels) of an image (batch, channels, height, width)."""
    return b.node("Transpose", [b.node("Reshape", [x, np.array([0, width, count])])], perm=[0, 2, 1])


def _end(b, rng, x, width, classes=3):
    mean = b.node("ReduceMean", [x], axes=[1], keepdims=0)
    return b.node("Gemm", [mean, weights(rng, classes, width), weights(rng, classes)], transB=1)


def vision_transformer(rng, size=4, patch=2, channels=3, width=6, heads=1):
    b, count = Builder(["batch", channels, size, size]), (size // patch) ** 2
    x = b.node("Conv", ["x", weights(rng, width, channels, patch, patch), weights(rng, width)], strides=[patch, patch])
    x = b.node("Add", [tokens(b, x, width, count), b.constant(weights(rng, count, width), "places")])
    x = b.node("Add", [x, attention(b, rng, x, count, width, heads, False)])
    _end(b, rng, x, width)
    return b


def conv_norm(rng):
    b = Builder(["batch", 2, 4, 4], opset=17)
    x = b.node("Relu", [_conv(b, rng, "x", 2, 6)])
    x = norm(b, tokens(b, x, 6, 16), 6)
    x = b.node("Add", [x, attention(b, rng, x, 16, 6, 1, False)])
    _end(b, rng, x, 6)
    return b


def gated(rng):
    b = Builder(["batch", 2, 5, 5])
    x = b.node("Relu", [_conv(b, rng, "x", 2, 6)])
    mean = b.node("GlobalAveragePool", [x])
    gate = b.node("Sigmoid", [_conv(b, rng, b.node("Relu", [_conv(b, rng, mean, 6, 3, 1)]), 3, 6, 1)])
    x = b.node("Relu", [_conv(b, rng, b.node("Mul", [x, gate]), 6, 5)])
    mean = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.node("Gemm", [mean, weights(rng, 3, 5), weights(rng, 3)], transB=1)
    return b


def pooled(rng, kind="MaxPool"):
    b = Builder(["batch", 2, 4, 4])
    x = b.node("Relu", [_conv(b, rng, "x", 2, 6)])
    x = tokens(b, b.node(kind, [x], kernel_shape=[2, 2], strides=[2, 2]), 6, 4)
    x = b.node("Add", [x, attention(b, rng, x, 4, 6, 1, False)])
    b.node("Gemm", [b.node("Flatten", [x]), weights(rng, 3, 24), weights(rng, 3)], transB=1)
    return b


#: Models by name.
MODELS = {
    "patches": vision_transformer,
    "norm": conv_norm,
    "gate": gated,
    "max": pooled,
    "average": lambda rng: pooled(rng, "AveragePool"),
}

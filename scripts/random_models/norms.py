"""Normalisations, as one operator and written in small operators."""

import numpy as np

from .drawing import Value, block

__all__ = []


@block(1, 2, 3)
def batch_norm(g, x):
    """BatchNormalization with the statistics of training."""
    channels = x.shape[0]
    mean, variance = g.normal(channels), np.abs(g.normal(channels)) + np.float32(0.2)
    return g.value("BatchNormalization", x.shape, x, g.normal(channels), g.normal(channels), mean, variance)


def _scaled(g, x, shape):
    if g.chance(0.3):
        return x
    made = g.value("Mul", x.shape, x, g.normal(*shape, centre=1.0, spread=0.3))
    return g.value("Add", x.shape, made, g.normal(*shape))


@block(1, 2, 3, opset=17)
def layer_norm(g, x):
    """LayerNormalization over the last axes, or RMSNormalization."""
    first = g.integer(0, len(x.shape) - 1)
    shape = x.shape[first:]
    if np.prod(shape) < 2:
        return None
    axis = g.choose(first + 1, first - len(x.shape))
    scale, epsilon = g.normal(*shape, centre=1.0, spread=0.3), g.choose(1e-5, 1e-3, 0.1)
    if g.opset >= 23 and g.chance(0.5):
        return g.value("RMSNormalization", x.shape, x, scale, axis=axis, epsilon=epsilon)
    bias = [g.normal(*shape)] if g.chance(0.7) else []
    return g.value("LayerNormalization", x.shape, x, scale, *bias, axis=axis, epsilon=epsilon)


@block(1, 2)
def written_norm(g, x):
    """A layer norm in small operators."""
    if x.shape[-1] < 2:
        return None
    last = [len(x.shape) - 1]
    mean = g.summed(x, last, "ReduceMean")
    centred = g.value("Sub", x.shape, x, mean)
    square = g.value("Pow", x.shape, centred, np.float32(2)) if g.chance(0.5) else g.value("Mul", x.shape, centred, centred)
    variance = g.summed(square, last, "ReduceMean")
    deviation = g.value("Sqrt", variance.shape, g.node("Add", variance, np.float32(1e-3)))
    return _scaled(g, g.value("Div", x.shape, centred, deviation), x.shape[-1:])


@block(1, 2)
def written_rms_norm(g, x):
    """A root-mean-square norm in small operators, or a division by the length of the vector."""
    last = [len(x.shape) - 1]
    operator = g.choose("ReduceMean", "ReduceSum")
    size = g.summed(g.value("Mul", x.shape, x, x), last, operator)
    size = g.value("Add", size.shape, size, np.float32(g.choose(1e-3, 0.5)))
    root = g.value("Sqrt", size.shape, size)
    if g.chance(0.5):
        return _scaled(g, g.value("Div", x.shape, x, root), x.shape[-1:])
    return _scaled(g, g.value("Mul", x.shape, x, g.node("Reciprocal", root)), x.shape[-1:])


@block(2, 3, opset=18)
def group_norm(g, x):
    """InstanceNormalization, or GroupNormalization of opset 21."""
    channels = x.shape[0]
    parameters = [g.normal(channels, centre=1.0, spread=0.3), g.normal(channels)]
    epsilon = g.choose(1e-5, 1e-3)
    groups = g.divisor(channels)
    values = np.prod(x.shape[1:])
    if g.opset >= 21 and g.chance(0.6) and channels // groups * values > 1:
        return g.value("GroupNormalization", x.shape, x, *parameters, num_groups=groups, epsilon=epsilon)
    return g.value("InstanceNormalization", x.shape, x, *parameters, epsilon=epsilon) if values > 1 else None


@block(2)
def normalised_rows(g, x):
    """Softmax along an axis, at the end of a dense layer or by itself."""
    axis = g.integer(0, 1)
    return Value(g.node("Softmax", x, axis=g.choose(axis + 1, axis - 2)), x.shape)

"""Convolutions in one and two dimensions, transposed convolutions, and changes of resolution."""

import numpy as np

from .drawing import block

__all__ = ["windows"]


def windows(g, sizes, *, dilated=True, smaller=False):
    """Returns random attributes of a window on axes of the given sizes, and the sizes of the result. If `smaller`, padding is
    less than the kernel, as pools require."""
    kernel = [g.integer(1, min(4, size)) for size in sizes]
    stride = [g.choose(1, 1, 2, 3) for _ in sizes]
    dilation = [2 if dilated and g.chance(0.25) and 2 * k - 1 <= size else 1 for k, size in zip(kernel, sizes)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    attributes = {"kernel_shape": kernel, "strides": stride} | ({"dilations": dilation} if dilated else {})
    if max(dilation) == 1 and not smaller and g.chance(0.2):
        attributes["auto_pad"] = g.choose("SAME_UPPER", "SAME_LOWER")
        return attributes, [-(-size // s) for size, s in zip(sizes, stride)]
    most = [k - 1 if smaller else min(2, span) for k, span in zip(kernel, spans)]
    pads = [g.integer(0, one) if g.chance(0.6) else 0 for one in (*most, *most)]
    attributes["pads"] = pads
    count = len(sizes)
    return attributes, [
        (size + pads[i] + pads[i + count] - span) // s + 1 for i, (size, span, s) in enumerate(zip(sizes, spans, stride))
    ]


def _groups(g, channels):
    return g.choose(1, 1, channels, g.divisor(channels))


@block(2, 3, share=3)
def convolution(g, x):
    """Conv with any groups, strides, padding and dilations."""
    channels, *sizes = x.shape
    attributes, result = windows(g, sizes)
    groups = _groups(g, channels)
    outputs = groups * g.integer(1, max(1, 8 // groups))
    weights = g.weights(
        outputs, channels // groups, *attributes["kernel_shape"], inputs=channels // groups * np.prod(attributes["kernel_shape"])
    )
    bias = [g.normal(outputs)] if g.chance(0.6) else []
    if g.chance(0.1) and "auto_pad" not in attributes:
        more = {"domain": "com.microsoft", "activation": g.choose("Relu", "Sigmoid", "Tanh")}
        return g.value("FusedConv", (outputs, *result), x, weights, *bias, group=groups, **attributes, **more)
    return g.value("Conv", (outputs, *result), x, weights, *bias, group=groups, **attributes)


@block(3)
def separable_convolution(g, x):
    """A depthwise convolution that keeps the size, a function, and a pointwise convolution."""
    channels, *sizes = x.shape
    made = g.value("Conv", x.shape, x, g.weights(channels, 1, 3, 3, inputs=9), pads=[1] * 4, group=channels)
    made = g.grow(made, "activation")
    outputs = g.integer(1, 8)
    return g.value("Conv", (outputs, *sizes), made, g.weights(outputs, channels, 1, 1, inputs=channels), g.normal(outputs))


@block(2, 3)
def transposed_convolution(g, x):
    """ConvTranspose with groups, strides, padding and output padding."""
    channels, *sizes = x.shape
    if max(sizes) > 8:
        return None
    groups = _groups(g, channels)
    each = g.integer(1, max(1, 6 // groups))
    kernel, stride = [g.integer(1, 3) for _ in sizes], [g.choose(1, 2, 2) for _ in sizes]
    extra = [g.integer(0, s - 1) for s in stride]
    pads = [g.integer(0, min(1, k - 1)) for k in (*kernel, *kernel)]
    count = len(sizes)
    result = [(size - 1) * stride[i] + kernel[i] + extra[i] - pads[i] - pads[i + count] for i, size in enumerate(sizes)]
    if min(result) < 1:
        return None
    weights = g.weights(channels, each, *kernel, inputs=channels // groups * np.prod(kernel))
    bias = [g.normal(groups * each)] if g.chance(0.5) else []
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": pads, "output_padding": extra, "group": groups}
    return g.value("ConvTranspose", (groups * each, *result), x, weights, *bias, **attributes)


@block(3)
def resized(g, x):
    """Resize by whole factors: nearest, or linear."""
    channels, *sizes = x.shape
    if max(sizes) > 6:
        return None
    by = [g.integer(1, 3) for _ in sizes]
    result = (channels, *(size * factor for size, factor in zip(sizes, by)))
    attributes = (
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if g.chance(0.5)
        else {"mode": "linear", "coordinate_transformation_mode": g.choose("half_pixel", "align_corners", "asymmetric")}
    )
    return g.value("Resize", result, x, None, np.array([1, 1, *by], np.float32), **attributes)

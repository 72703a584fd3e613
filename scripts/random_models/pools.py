"""Pooling windows, and reductions over axes."""

from .convolutions import windows
from .drawing import block

__all__ = []


@block(2, 3, share=1.5)
def pool(g, x):
    """MaxPool or AveragePool."""
    channels, *sizes = x.shape
    operator = g.choose("MaxPool", "AveragePool")
    attributes, result = windows(g, sizes, dilated=operator == "MaxPool" and g.chance(0.3), smaller=True)
    more = {"count_include_pad": g.integer(0, 1)} if operator == "AveragePool" else {}
    if g.chance(0.2) and all(stride == 1 for stride in attributes["strides"]):
        more["ceil_mode"] = 1  # without effect for stride 1
    return g.value(operator, (channels, *result), x, **attributes, **more)


@block(2, 3)
def global_pool(g, x):
    """GlobalMaxPool or GlobalAveragePool."""
    channels, *sizes = x.shape
    return g.value(g.choose("GlobalMaxPool", "GlobalAveragePool"), (channels, *[1] * len(sizes)), x)


@block(1, 2, 3, share=1.5)
def reduction(g, x):
    """A reduction over one or several axes of a sample."""
    axes = sorted(g.rng.permutation(len(x.shape))[: g.integer(1, len(x.shape))].tolist())
    keep = len(axes) == len(x.shape) or g.chance(0.5)
    return g.summed(x, axes, g.choose("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), keep)

"""Scales and shifts that no other node takes up, as Linear nodes."""

from dataclasses import replace

import numpy as np

from ..ir.bias_rows import rectangles, regions
from .nodes import Constant, Linear, SumRegion, Tap, identity

__all__ = [
    "by_factors",
    "has_bias_rows",
    "in_regions",
    "is_infinite",
    "per_position",
    "same_everywhere",
    "sum_of",
    "with_bias_rows",
]

_MOST_PARTS = 8  # of a scale that differs from position to position, with a stage each


def sum_of(one, two):
    return two if one is None else one if two is None else one + two


def same_everywhere(array):
    """Returns True if an array (y, x, channel), or None, is the same at every position."""
    return array is None or array.shape[:2] == (1, 1)


def has_bias_rows(node):
    return node.bias is not None and node.bias.ndim == 3


def is_infinite(array):
    return array is not None and bool(np.isinf(array).any())


def per_position(array, shape):
    """Returns an array (y, x, channel) as (channels,) if it is the same at every position, else in this shape."""
    return np.broadcast_to(array.reshape(-1), shape[2]) if same_everywhere(array) else np.broadcast_to(array, shape)


def with_bias_rows(affine):
    """Returns a scale and shift as a Linear node of one region; with bias rows if the shift differs from position to position."""
    channels, scale, shift, folded = affine.shape[2], affine.scale, affine.shift, affine.folded
    weights = np.ones(channels) if scale is None else np.broadcast_to(scale.reshape(-1), channels)
    tap = Tap(affine.source, weights.reshape(1, 1, 1, channels), groups=channels, exact=True)
    return Linear(
        **_common(affine),
        parts=(SumRegion((tap,), affine.shape[:2]),),
        bias=None if shift is None else per_position(shift, affine.shape),
        folded=folded and replace(folded, size=per_position(folded.size, affine.shape)),
    )


def by_factors(affine):
    """Returns a scale that differs from position to position as products by a constant tensor. Returns None if parts with one
    scale each are few, or if there is a shift."""
    if affine.shift is not None or len(rectangles((affine.scale,))) <= _MOST_PARTS:
        return None
    values = np.broadcast_to(affine.scale, affine.shape)
    factors = Constant(name=affine.name, title=affine.title, shape=affine.shape, values=values)
    return Linear(**_common(affine), parts=(identity(affine.source),), times=factors)


def in_regions(affine):
    folded, channels, parts, bias, sizes = affine.folded, affine.shape[2], [], [], []
    scale, shift, size = (
        None if array is None else np.broadcast_to(array, affine.shape)
        for array in (affine.scale, affine.shift, folded and folded.size)
    )
    for (top, bottom), (left, right) in regions((scale, shift), affine.title):
        weights = scale[top, left].reshape(1, 1, 1, channels)
        tap = Tap(affine.source, weights, padding=(-top, -left), groups=channels, exact=True)
        parts.append(SumRegion((tap,), (bottom - top, right - left), (top, left)))
        bias.append(None if shift is None else shift[top, left])
        sizes.append(None if size is None else size[top:bottom, left:right].max((0, 1)))
    bias = None if shift is None else np.stack(bias)
    folded = folded and replace(folded, size=np.stack(sizes))
    return Linear(**_common(affine), parts=tuple(parts), bias=bias, folded=folded)


def _common(node):
    return {key: getattr(node, key) for key in ("name", "title", "shape", "value", "loose")}

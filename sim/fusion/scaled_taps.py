"""Taps whose weights take up scales."""

from dataclasses import replace

from ..ir.stage import span
from .merging import keeps_range

__all__ = ["is_dense", "is_inside", "keep_range", "scaled_part", "spread"]


def spread(array, tap):
    """Expands constants per channel of a tap's source to constants per weight: from (a, b, channels of the source) to (a, b,
    input channels of a group, outputs), for any a and b."""
    groups, outputs = tap.groups, tap.weights.shape[3]
    return array.reshape(*array.shape[:2], groups, -1).transpose(0, 1, 3, 2).repeat(outputs // groups, axis=3)


def is_inside(tap, size):
    """Returns True if no window of the tap reads padding, for sums of this (height, width)."""
    return all(
        before <= 0 and span(count, stride, kernel, dilation) - before <= have
        for have, count, stride, kernel, dilation, before in zip(
            tap.source.shape, size, tap.stride, tap.kernel, tap.dilation, tap.padding
        )
    )


def is_dense(tap, size):
    """Returns True if the tap is a dense layer: it computes one position of sums, from every value of the source."""
    return tap.kernel == tap.source.shape[:2] and size == (1, 1) and tap.padding == (0, 0) and tap.groups == 1


def keep_range(part, scaled):
    return all(keeps_range(one.weights, two.weights) for one, two in zip(part.taps, scaled.taps))


def scaled_part(part, scale):
    if (scale == 1).all():
        return part
    return replace(part, taps=tuple(replace(tap, weights=tap.weights * scale, select=None) for tap in part.taps))

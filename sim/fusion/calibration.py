"""Rounding of weights so that sums keep their means: for means of the operands that are known from samples."""

import numpy as np

from ..golden.arithmetic import round_bfloat16

__all__ = ["lost_means", "round_windows"]

_CORRELATION = 0.8  # of values of a channel at neighbouring positions
_LEAST = 2.0**-110  # smaller weights are rounded to the nearest
_ROWS = 1024  # channels at a time


def round_windows(weights):
    """Returns weights (height, width, inputs, outputs) rounded to bfloat16, up or down, so that the errors in a window cancel:
    neighbouring operands are similar. Weights that bfloat16 represents are unchanged."""
    exact = np.asarray(weights, np.float32).reshape(-1, *weights.shape[2:])
    nearest = round_bfloat16(exact)
    if len(exact) == 1 or not np.isfinite(exact).all():
        return nearest.reshape(weights.shape)
    rows, columns = np.divmod(np.arange(len(exact)), weights.shape[1])
    alike = _CORRELATION ** np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    errors, rounded = np.zeros(exact.shape, np.float32), nearest.astype(np.float32)
    for place, values in enumerate(exact):
        near = rounded[place]
        bits = near.view(np.uint32)
        other = np.where(np.abs(near) < np.abs(values), bits + np.uint32(1 << 16), bits - np.uint32(1 << 16)).view(np.float32)
        other = np.where((near == values) | (np.abs(values) < _LEAST) | ~np.isfinite(other), near, other)
        before = np.tensordot(alike[place, :place].astype(np.float32), errors[:place], 1)
        there, here = other - values, near - values
        is_other = there * (there + 2 * before) < here * (here + 2 * before)
        rounded[place] = np.where(is_other, other, near)
        errors[place] = np.where(is_other, there, here)
    return round_bfloat16(rounded).reshape(weights.shape)


def lost_means(tap, rounded, means):
    """Returns what rounding the weights of a tap takes from the mean of each sum. `means` has the mean of each channel of its
    source. The result is rounded to bfloat16, so that it does not depend on the order of the additions."""
    inputs, groups, lost = tap.weights.shape[2], tap.groups, 0.0
    means = np.repeat(means.reshape(groups, inputs).T, tap.weights.shape[3] // groups, axis=1) if groups > 1 else means[:, None]
    for exact, near in zip(tap.weights.reshape(-1, *tap.weights.shape[2:]), rounded.reshape(-1, *tap.weights.shape[2:])):
        for first in range(0, inputs, _ROWS):
            part = slice(first, first + _ROWS)
            lost = lost + ((exact[part] - near[part].astype(np.float64)) * means[part]).sum(0)
    return round_bfloat16(lost.astype(np.float32)).astype(np.float32)

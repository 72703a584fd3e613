"""Tiles, which are `n` lanes of a vector or `n` x `n` weights, and weights of groups as weights of all channels."""

import numpy as np

__all__ = ["dense", "saves_tiles", "tiles_of"]


def tiles_of(size, n):
    """Returns the number of tiles of `n` lanes that hold `size` values."""
    return -(-size // n)


def saves_tiles(kernel, channels, n):
    """Returns True if the windows of a kernel have fewer tiles after im2col, with all `channels` of a window in one vector."""
    positions = kernel[0] * kernel[1]
    return tiles_of(positions * channels, n) < positions * tiles_of(channels, n)


def dense(values, groups, fill=0):
    """Returns weights (..., inputs of a group, outputs) for the channels of all groups, with `fill` outside of the groups."""
    *kernel, inputs, outputs = values.shape
    each, full = outputs // groups, np.full((*kernel, groups * inputs, outputs), fill, values.dtype)
    for one in range(groups):
        own = slice(one * each, (one + 1) * each)
        full[..., one * inputs : (one + 1) * inputs, own] = values[..., own]
    return full

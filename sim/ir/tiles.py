"""Tiles: `n` lanes of a vector, or `n` x `n` weights."""

__all__ = ["saves_tiles", "tiles_of"]


def tiles_of(size, n):
    """Returns the number of tiles of `n` lanes that hold `size` values."""
    return -(-size // n)


def saves_tiles(kernel, channels, n):
    """Returns True if the windows of a kernel have fewer tiles after im2col, with all `channels` of a window in one vector."""
    positions = kernel[0] * kernel[1]
    return tiles_of(positions * channels, n) < positions * tiles_of(channels, n)

"""Tiles: `n` lanes of a vector, or `n` x `n` weights."""

__all__ = ["tiles_of"]


def tiles_of(size, n):
    """Returns the number of tiles of `n` lanes that hold `size` values."""
    return -(-size // n)

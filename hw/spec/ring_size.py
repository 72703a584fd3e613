"""The most cores of a ring, in a file of its own: the commands' options name it before any hardware is imported."""

__all__ = ["MOST_CORES"]

#: Cores of a ring.
MOST_CORES = 8

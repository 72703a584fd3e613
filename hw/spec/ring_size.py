"""The largest number of cores in a ring. It has its own file because the options of commands name it before any hardware is
imported."""

__all__ = ["MOST_CORES"]

#: Cores of a ring.
MOST_CORES = 8

"""The default latency of host memory, in a file of its own: the commands' options name it before anything else is imported."""

__all__ = ["HOST_LATENCY"]

#: Cycles that host memory takes to answer, where nothing else is said: of estimates and of runs.
HOST_LATENCY = 32

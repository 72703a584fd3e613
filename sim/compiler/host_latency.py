"""The default latency of host memory, in a file of its own: the commands' options need it before anything else is imported."""

__all__ = ["HOST_LATENCY"]

#: Default latency of host memory in cycles, for estimates and runs.
HOST_LATENCY = 32

"""The default latency of host memory. It has its own file because the options of commands need it before other modules are
imported."""

__all__ = ["HOST_LATENCY"]

#: Default latency of host memory in cycles, for estimates and runs.
HOST_LATENCY = 32

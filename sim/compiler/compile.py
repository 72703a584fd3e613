"""The compiler of networks: graph, configuration and batch size -> program, memory images and cycle estimates."""

import numpy as np

from .compile_graph import compile_graph
from .errors import CompileError

__all__ = ["EFFORTS", "check_batch", "check_effort", "compile_network"]

#: Extents of the search: see :func:`compile_network`.
EFFORTS = ("fast", "best")


#: Largest batch size. A program has instructions for each chunk of a batch; batches beyond some hundred samples gain no
#: speed.
_MOST_SAMPLES = 1 << 16


def check_batch(batch):
    """Raises CompileError if `batch` is not an integer from 1 to the largest supported batch size."""
    if not isinstance(batch, (int, np.integer)) or batch < 1:
        raise CompileError(f"batch must be an integer of at least 1, not {batch!r}")
    if batch > _MOST_SAMPLES:
        raise CompileError(f"batch of {batch}: a run has at most {_MOST_SAMPLES} samples; do several runs")


def check_effort(effort):
    """Raises CompileError if `effort` is not one of `EFFORTS`."""
    if effort not in EFFORTS:
        raise CompileError(f"effort must be one of {', '.join(EFFORTS)}, not {effort!r}")


def compile_network(graph, config, batch, effort="best", progress=None):
    """Compiles a network for batches of `batch` samples, by :func:`.compile_graph`.

    Parameters
    ----------
    effort : str
        One of `EFFORTS`. `best` searches for the order with the fewest cycles; `fast` takes the first order that fits.

    Raises
    ------
    CompileError
        If the smallest tiles of a stage do not fit, or the images exceed the 32-bit offsets.
    """
    check_batch(batch)
    check_effort(effort)
    return compile_graph(graph, config, batch, fast=effort == "fast", progress=progress)

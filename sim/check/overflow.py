"""Finds where values of a network become infinite, so that the core does not do what the golden model does.

Groups of channels, and neighbouring positions or samples, share tiles of weights, with zeros between them. Infinity times zero is
NaN, so an infinity reaches the other results of its tile; the golden model has no such products.
"""

import numpy as np

from ..golden.network import run_graph

__all__ = ["first_not_finite"]


def first_not_finite(network, samples):
    """Returns the name of the first stage with an infinite result or NaN for these samples; None if there is none.

    Parameters
    ----------
    network : Graph
    samples : float32 (count, size)
    """
    if not len(samples):
        return None
    _, tensors = run_graph(network, samples, keep=True)
    return next((stage.name for stage in network.stages if not np.isfinite(tensors[stage.output].astype(np.float32)).all()), None)

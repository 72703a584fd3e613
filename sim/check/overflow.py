"""Search for the first stage with infinite results. From this stage on, the core may differ from the golden model.

On the core, groups of channels, and adjacent positions or samples, share weight tiles, padded with zeros. Infinity times zero is
NaN, so an infinite operand affects all results of its tile. The golden model does not compute these products.
"""

import numpy as np

from ..golden.network import run_graph

__all__ = ["first_not_finite"]


def first_not_finite(network, samples):
    """Returns the name of the first stage whose results contain an infinity or a NaN for the given samples, or None.

    Parameters
    ----------
    network : Graph
    samples : float32 (count, size)
    """
    if not len(samples):
        return None
    _, tensors = run_graph(network, samples, keep=True)
    return next((stage.name for stage in network.stages if not np.isfinite(tensors[stage.output].astype(np.float32)).all()), None)

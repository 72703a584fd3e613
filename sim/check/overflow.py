"""Where values of a network become infinite, so that the core does not do what the golden model does.

Groups of channels share tiles of weights, with zeros between the groups. Infinity times zero is NaN, so an infinity in one group
reaches the others in its tile; the definition, which the golden model follows, has no such products.
"""

import numpy as np

from ..golden.network import run_graph

__all__ = ["infinite_stage"]


def infinite_stage(network, samples):
    """The name of the first stage whose result for these samples is infinite, or no number, somewhere, and is an operand of
    groups of channels; None if there is none.

    Parameters
    ----------
    network : Graph
    samples : float32 (count, size)
    """
    if not len(samples):
        return None
    grouped = {term.source for stage in network.stages for term in stage.terms if term.groups > 1}
    _, tensors = run_graph(network, samples, keep=True)
    return next(
        (
            stage.name
            for stage in network.stages
            if stage.output in grouped and not np.isfinite(tensors[stage.output].astype(np.float32)).all()
        ),
        None,
    )

"""The parameters of a network."""

from dataclasses import replace

import numpy as np

from ..ir.errors import ModelError
from ..ir.training import Parameter, TrainingGraph
from .refusals import check_trainable

__all__ = ["differentiate"]


def differentiate(graph):
    """Returns the training graph of a network, with its parameters.

    The trained parameters are the weights of all terms that are not fixed and not results of other stages, and the biases of all
    stages with such a term.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        Network that ends with logits, or with a Softmax over the channels, which is removed.

    Returns
    -------
    sim.ir.training.TrainingGraph

    Raises
    ------
    sim.ir.errors.ModelError
        If the network cannot be trained. The message is one line that names the operator and its node.
    """
    graph = _logits(graph)
    check_trainable(graph)
    parameters = tuple(one for number, stage in enumerate(graph.stages) for one in _parameters(number, stage))
    if not parameters:
        raise ModelError(f"{graph.name}: has no weights that could be trained")
    return TrainingGraph(graph, parameters)


def _logits(graph):
    last = graph.stages[-1]
    if not last.softmax:
        return graph
    return replace(graph, stages=(*graph.stages[:-1], replace(last, softmax=False)), softmax=True)


def _parameters(number, stage):
    trained = [place for place, term in enumerate(stage.terms) if not (term.fixed or term.data)]
    for place in trained:
        name = "weights" if len(trained) == 1 else f"weights{place}"
        yield Parameter(f"{stage.name}.{name}", number, place, stage.terms[place].weights.astype(np.float32))
    if trained and stage.bias is not None:
        yield Parameter(f"{stage.name}.bias", number, None, stage.bias.astype(np.float32))

"""Reverse differentiation of a network, stage by stage."""

from dataclasses import replace

import numpy as np

from ..ir.errors import ModelError
from ..ir.training import GradientTerm, Parameter, SumsGradient, TrainingGraph
from .refusals import check_trainable

__all__ = ["differentiate"]


def differentiate(graph):
    """Returns the :class:`sim.ir.training.TrainingGraph` of a network: its trained parameters, and the gradients of its stages.

    The trained parameters are the weights of all terms that are not fixed, and the biases of all stages with such a term.

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
    return TrainingGraph(graph, parameters, _gradients(graph, {one.stage for one in parameters}))


def _logits(graph):
    last = graph.stages[-1]
    if not last.softmax:
        return graph
    return replace(graph, stages=(*graph.stages[:-1], replace(last, softmax=False)), softmax=True)


def _parameters(number, stage):
    trained = [place for place, term in enumerate(stage.terms) if not term.fixed]
    for place in trained:
        name = "weights" if len(trained) == 1 else f"weights{place}"
        yield Parameter(f"{stage.name}.{name}", number, place, stage.terms[place].weights.astype(np.float32))
    if trained and stage.bias is not None:
        yield Parameter(f"{stage.name}.bias", number, None, stage.bias.astype(np.float32))


def _gradients(graph, trained):
    """Returns the gradients of the trained stages, and of the stages between a trained stage and the end of the network."""
    moved = set()  # names of tensors that depend on a parameter
    for number, stage in enumerate(graph.stages):
        if number in trained or any(term.source in moved for term in stage.terms):
            moved.add(stage.output)
    names = {number: f"gradient of {stage.name}" for number, stage in enumerate(graph.stages)}
    gradients = []
    for number in reversed(range(len(graph.stages))):
        stage = graph.stages[number]
        if stage.output not in moved:
            continue
        terms = tuple(
            GradientTerm(names[reader], reader, place)
            for reader in range(number + 1, len(graph.stages))
            for place, term in enumerate(graph.stages[reader].terms)
            if term.source == stage.output
        )
        gradients.append(SumsGradient(names[number], number, terms))
    return tuple(gradients)

"""The parameters of a network."""

from dataclasses import replace

import numpy as np

from ..ir.errors import ModelError
from ..ir.losses import Loss
from ..ir.training import Parameter, TrainingGraph
from .embeddings import tied_terms, with_embeddings
from .refusals import check_trainable, refusal

__all__ = ["differentiate"]


def differentiate(graph, loss=Loss.CROSS_ENTROPY, counted=False, apart=None):
    """Returns the training graph of a network, with its parameters.

    The trained parameters are the weights of all terms that are not fixed and not results of other stages, the biases of all
    stages with such a term, tables of embeddings, and rows for positions that are added after a trained stage.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        Network that ends with logits, or with a Softmax over the channels, which is removed. With the squared error, it ends
        with any result.
    loss : sim.ir.training.Loss
    counted : bool
        The host writes a factor for the loss of each position.
    apart : callable or None
        Returns the graph with other weights, which are equal only where two layers share them, or None. Default: equal weights
        are shared.

    Returns
    -------
    sim.ir.training.TrainingGraph

    Raises
    ------
    sim.ir.errors.ModelError
        If the network cannot be trained. The message is one line that names the operator and its node.
    """
    graph = _prepared(graph, loss)
    check_trainable(graph, loss)
    parameters, tied = [], set()
    for number, stage in enumerate(graph.stages):
        for one in _parameters(number, stage, bool(parameters)):
            if (number, one.term) not in tied:
                alike = [other for other in parameters if _are_alike(one, other)]
                if alike and _are_shared(one, alike, apart() if apart else None, loss):
                    raise refusal(stage, "shared")
                ties = () if one.term is None else tied_terms(graph, number, one.term)
                parameters.append(replace(one, tied=ties))
                tied |= {*ties}
    if not parameters:
        raise ModelError(f"{graph.name}: has no weights that could be trained")
    return TrainingGraph(graph, tuple(parameters), loss=loss, counted=counted)


def _are_alike(one, other):
    alike = one.term is not None and one.initial.shape == other.initial.shape and np.array_equal(one.initial, other.initial)
    return alike and len(np.unique(one.initial)) > 2


def _are_shared(one, others, graph, loss):
    """Returns True if a parameter equals one of the others in a graph with other weights, too, or if there is no such graph."""
    if graph is None:
        return True
    stages = _prepared(graph, loss).stages
    try:
        weights, *rest = (stages[place.stage].terms[place.term].weights for place in (one, *others))
    except IndexError:
        return True
    return any(np.array_equal(weights, other) for other in rest)


def _prepared(graph, loss):
    return with_embeddings(_logits(graph) if loss is Loss.CROSS_ENTROPY else graph)


def _logits(graph):
    last = graph.stages[-1]
    if not last.softmax:
        return graph
    return replace(graph, stages=(*graph.stages[:-1], replace(last, softmax=False)), softmax=True)


def _parameters(number, stage, is_after):
    """Yields the parameters of a stage. `is_after` is True if an earlier stage has parameters."""
    trained = [place for place, term in enumerate(stage.terms) if not (term.fixed or term.data)]
    for place in trained:
        name = "weights" if len(trained) == 1 else f"weights{place}"
        yield Parameter(f"{stage.name}.{name}", number, place, stage.terms[place].weights.astype(np.float32))
    adds_rows = is_after and stage.has_bias_rows and not stage.softmax and bool(np.isfinite(stage.bias).all())
    if stage.bias is not None and (trained or adds_rows and all(term.fixed for term in stage.terms)):
        yield Parameter(f"{stage.name}.bias", number, None, stage.bias.astype(np.float32))

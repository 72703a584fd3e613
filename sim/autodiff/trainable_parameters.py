"""The parameters of a network: which weights and biases are trained."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..functions.functions import NONE, Function
from ..ir.errors import ModelError
from ..ir.graph import Parameter
from ..ir.losses import JointLoss, Loss
from .embeddings import tied_terms, with_embeddings
from .joint_outputs import with_joint_outputs
from .refusals import check_derivatives, check_trainable, refusal

__all__ = ["with_parameters", "with_probabilities"]

_SIGMOID = Function("sigmoid")


def with_parameters(graph, loss=Loss.CROSS_ENTROPY, counted=False, apart=None):
    """Returns the training graph of a network, with its parameters.

    The trained parameters are the weights of all terms that are not fixed and not results of other stages, the biases of all
    stages with such a term, tables of embeddings, and rows for positions that are added after a trained stage.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        Network that ends with logits, or with a Softmax over the channels, which is removed; for the binary cross-entropy, with a
        Sigmoid. With other losses, it ends with any result.
    loss : sim.ir.losses.Loss
    counted : bool
        The host writes a factor for the loss of each position.
    apart : callable or None
        Returns the graph with other weights, which are equal only where two layers share them, or None. Default: equal weights
        are shared.

    Returns
    -------
    sim.ir.graph.Graph

    Raises
    ------
    sim.ir.errors.ModelError
        If the network cannot be trained. The message is one line that names the operator and its node.
    """
    graph = _prepared(graph, loss)
    check_trainable(graph, loss)
    graph = _united(graph, apart and (lambda: (other := apart()) and _prepared(other, loss)))
    made, tied = replace(graph.copied(), loss=loss, is_counted=counted), {}
    for stage in graph.stages:
        for name, is_bias in _trained(graph, stage, bool(made.parameters)):
            if name in tied or name in made.parameters:
                continue
            values = made.constants.pop(name)
            made.tensors[name] = replace(made.tensors[name], wide=True)
            made.parameters[name] = Parameter(values.astype(np.float32), not is_bias)
            tied |= dict.fromkeys(() if is_bias else tied_terms(graph, name), name)
    if not made.parameters:
        raise ModelError(f"{graph.name}: has no weights that could be trained; add a layer with weights, such as Gemm")
    made.stages = [replace(stage, terms=tuple(_tied(term, tied) for term in stage.terms)) for stage in graph.stages]
    for name in tied:
        del made.constants[name], made.tensors[name]
    check_derivatives(made)
    return made


def _united(graph, others):
    """Returns the graph with one name for weights, and for biases, which are equal in a graph with other weights, too. `others`
    returns that graph; without it, equal weights are one, and biases are not."""
    first, names, other = {}, {}, None
    for stage in graph.stages:
        for name, is_bias in _trained(graph, stage, bool(names)):
            alike = [one for one in first.get(is_bias, ()) if one != name and _are_alike(graph, one, name, is_bias)]
            if name in names or alike and is_bias and others is None:
                continue
            if alike and others and other is None:
                other = _other_constants(others, stage)
            found = [one for one in alike if other is None or _are_equal(other, one, name, stage)]
            names[name] = found[0] if found else name
            if not found:
                first.setdefault(is_bias, []).append(name)
    if all(one == name for one, name in names.items()):
        return graph
    made = graph.copied()
    made.stages = [
        replace(
            stage,
            start=names.get(stage.start, stage.start),
            terms=tuple(replace(term, weights=names.get(term.weights, term.weights)) for term in stage.terms),
        )
        for stage in graph.stages
    ]
    for name, one in names.items():
        if name != one:
            del made.constants[name], made.tensors[name]
    return made


def _are_alike(graph, one, other, is_bias):
    one, other = graph.constants[one], graph.constants[other]
    return one.shape == other.shape and np.array_equal(one, other) and (is_bias or len(np.unique(one)) > 2)


def _other_constants(others, stage):
    with suppress(ModelError):
        if graph := others():
            return graph.constants
    raise refusal(stage, "shared")


def _are_equal(constants, one, other, stage):
    if not {one, other} <= constants.keys():
        raise refusal(stage, "shared")
    return np.array_equal(constants[one], constants[other])


def _tied(term, tied):
    return replace(term, weights=tied[term.weights], swapped=True) if term.weights in tied else term


def _prepared(graph, loss):
    if isinstance(loss, JointLoss):
        return with_embeddings(with_joint_outputs(graph, loss))
    return with_embeddings(_logits(graph, loss) if loss.is_of_logits else graph)


def _logits(graph, loss):
    last = graph.stages[-1]
    if not (last.softmax if loss.is_of_classes else last.function == _SIGMOID):
        return graph
    return replace(graph, stages=(*graph.stages[:-1], replace(last, softmax=False, function=NONE)), softmax=True)


def with_probabilities(graph):
    """Returns a graph with the Sigmoid that training removed from its end."""
    if graph.loss is not Loss.BINARY or not graph.softmax:
        return graph
    return replace(graph, stages=[*graph.stages[:-1], replace(graph.stages[-1], function=_SIGMOID)], softmax=False)


def _trained(graph, stage, is_after):
    """Yields `(name, is a bias)` of the parameters of a stage. `is_after` is True if an earlier stage has parameters."""
    trained = [term.weights for term in stage.terms if not (term.fixed or graph.is_product(term))]
    yield from ((name, False) for name in trained)
    if stage.start is None:
        return
    fixed = [graph.constants.get(term.weights) for term in stage.terms if term.fixed]
    is_bias = all(weights is not None and not weights.any() for weights in fixed)  # beside a source that only gives the batch
    rows = is_after and (graph.has_bias_rows(stage) or is_bias) and not stage.softmax and len(fixed) == len(stage.terms)
    if trained or rows and bool(np.isfinite(graph.constants[stage.start]).all()):
        yield stage.start, True

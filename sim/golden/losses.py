"""Losses, and the arrangement of targets: a class for each position of a result, with padding, or numbers."""

from functools import partial

import numpy as np

from ..ir.losses import Huber, JointLoss, Loss
from .arithmetic import round_bfloat16

__all__ = ["Positions", "cross_entropy", "loss_of", "one_hot"]


def one_hot(labels, classes, smoothing=0.0):
    """Returns targets, bfloat16 (..., classes), for class numbers. With label smoothing, each target is `smoothing / classes`,
    plus 1 - smoothing at the label."""
    there = np.asarray(labels)[..., None] == np.arange(classes)
    return round_bfloat16((there * (1 - smoothing) + smoothing / classes).astype(np.float32))


def _mean(losses, counted):
    if counted is None:
        return float(losses.mean())
    shares = np.asarray(counted).astype(np.float64).reshape(losses.shape)
    return float((losses * shares).sum() / max(np.count_nonzero(shares), 1))


def cross_entropy(logits, targets, counted=None):
    """Returns the mean of `-sum of T log softmax(logits)` over all positions, computed in binary64.

    Parameters
    ----------
    logits, targets : array (..., classes)
    counted : array (...) or None
        Factor of the loss of each position. The mean is over the factors that are not 0.
    """
    values, shares = np.asarray(logits, np.float64), np.asarray(targets).astype(np.float64)
    with np.errstate(all="ignore"):
        values = values - values.max(axis=-1, keepdims=True)
        losses = np.log(np.exp(values).sum(axis=-1)) * shares.sum(axis=-1) - (shares * values).sum(axis=-1)
    return _mean(losses, counted)


def _huber(outputs, targets, delta=1):
    errors = np.abs(outputs - targets)
    return np.where(errors < delta, errors**2 / 2, delta * (errors - delta / 2))


#: The loss of one number, for results and targets in binary64.
_OF_NUMBERS = {
    Loss.BINARY: lambda outputs, targets: np.logaddexp(0, outputs) - outputs * targets,
    Loss.SQUARED_ERROR: lambda outputs, targets: (outputs - targets) ** 2,
    Loss.ABSOLUTE_ERROR: lambda outputs, targets: np.abs(outputs - targets),
    Loss.HUBER: _huber,
}


def loss_of(kind, outputs, targets, counted=None):
    """Returns the mean loss, computed in binary64. `kind` is a :class:`sim.ir.losses.Loss` or JointLoss; the arrays are as in
    :func:`cross_entropy`."""
    if isinstance(kind, JointLoss):
        parts = ((one.weight, one.loss, outputs[..., one.place], targets[..., one.place]) for one in kind.heads)
        return sum(weight * loss_of(loss, *part, counted) for weight, loss, *part in parts)
    if kind.is_of_classes:
        return cross_entropy(outputs, targets, counted)
    with np.errstate(all="ignore"):
        of_number = partial(_huber, delta=kind.delta) if isinstance(kind, Huber) else _OF_NUMBERS[kind]
        losses = of_number(np.asarray(outputs, np.float64), np.asarray(targets).astype(np.float64))
        return _mean(losses.mean(axis=-1), counted)


class Positions:
    """The positions of a network's result, each with a vector of classes, in the order of the ONNX model.

    Members
    -------
    places : int array (positions, classes)
        Index of each number in the flattened result of the ONNX model.
    tensor : int array (positions,)
        Position in the output tensor, row by row.
    """

    def __init__(self, graph):
        shape = graph.tensors[graph.output].shape
        order = np.arange(np.prod(shape)) if graph.output_order is None else np.asarray(graph.output_order)
        of_values = order // shape[-1]
        _, first, inverse = np.unique(of_values, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[inverse]  # positions are numbered as they first occur
        self.places = np.argsort(rank, kind="stable").reshape(-1, shape[-1])
        self.tensor = of_values[self.places[:, 0]]
        self.classes = shape[-1]

    def __len__(self):
        return len(self.places)

    def vectors(self, results):
        """Returns results (batch, output size) as (batch, positions, classes)."""
        return np.asarray(results)[:, self.places]

    def flat(self, vectors):
        """Returns vectors (batch, positions, classes) as results (batch, output size)."""
        result = np.empty((len(vectors), self.places.size), vectors.dtype)
        result[:, self.places] = vectors
        return result

    def targets(self, labels):
        """Returns one-hot targets, bfloat16 (batch, output size), of class numbers (batch, positions) or (batch,)."""
        return self.flat(one_hot(np.asarray(labels).reshape(len(labels), -1), self.classes))

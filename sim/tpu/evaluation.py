"""Loss, accuracy and metrics of a run on labelled samples."""

import numpy as np

from ..golden.losses import Positions, cross_entropy, squared_error
from ..ir.errors import ModelError
from ..ir.losses import Loss
from ..trainer.errors import ArgumentError
from ..trainer.metric_names import parse_metric
from ..trainer.metrics import measured
from ..trainer.samples import Score
from .arguments import check_name
from .training_data import labels_of, shares_of

__all__ = ["evaluation", "loss_of"]

#: Names of losses, the library's own and Keras'.
_LOSSES = {
    "cross_entropy": Loss.CROSS_ENTROPY,
    "categorical_crossentropy": Loss.CROSS_ENTROPY,
    "sparse_categorical_crossentropy": Loss.CROSS_ENTROPY,
    "mse": Loss.SQUARED_ERROR,
    "mean_squared_error": Loss.SQUARED_ERROR,
}
#: Keras' names of the accuracy.
_ACCURACY = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy")


def loss_of(name):
    """Returns the :class:`sim.ir.losses.Loss` of an argument `loss`. Raises ArgumentError for other names."""
    check_name("loss", name, _LOSSES)
    return _LOSSES[name]


def evaluation(run, y, loss, metrics):
    """Returns the loss and the metrics of an :class:`.InferenceRun`, as described in :meth:`sim.tpu.model.Model.evaluate`."""
    network, origin, loss = run.network, run.network.origin, loss_of(loss)
    if origin.is_split:
        raise ModelError(f"{network.name}: has several outputs; call predict, and compute the loss of each output")
    metrics = [metrics] if isinstance(metrics, str) else metrics
    values = run.outputs[origin.output.name] if run.result is None else run.result.logits
    values = np.asarray(values, np.float64).reshape(len(run.rows), -1)
    positions, shares = Positions(network), shares_of(network, y, len(values), loss)
    labels = labels_of(network, y if shares is None else shares.argmax(axis=-1), len(values), loss)
    vectors = positions.vectors(values)
    if loss is Loss.SQUARED_ERROR:
        if metrics:
            raise ArgumentError("`metrics` need the loss cross_entropy")
        return {"loss": squared_error(vectors, positions.vectors(labels))}
    if network.stages[-1].softmax or run.result is None and origin.output.last == "softmax":
        vectors = np.log(np.maximum(vectors, np.finfo(np.float32).tiny))
    labels = labels.reshape(len(values), -1)
    score = Score.of(vectors, labels)
    try:
        names = [parse_metric(name) for name in metrics if name not in _ACCURACY]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"`metrics`: {error}") from None
    mean = score.loss if shares is None else cross_entropy(vectors, shares)
    return {"loss": mean, "accuracy": score.accuracy} | measured(names, vectors, labels)

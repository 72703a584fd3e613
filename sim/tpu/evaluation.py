"""Loss, accuracy and metrics of results on labelled samples."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..autodiff.joint_outputs import logits_of_output
from ..data.labels import PADDING
from ..functions.functions import NONE, Function
from ..golden.losses import Positions, cross_entropy, loss_of, one_hot
from ..ir.losses import Head, Huber, JointLoss, Loss
from ..ir.model_ends import softmax
from ..trainer.errors import ArgumentError
from ..trainer.metric_names import parse_metric
from ..trainer.metrics import measured
from ..trainer.samples import Score
from .arguments import check_name, shown
from .keras_objects import loss_name, metric_name
from .training_data import joint_labels, labels_of, shares_of

__all__ = ["Metrics", "evaluation", "parse_loss", "with_logits"]

#: Names of losses, the library's own and Keras'.
_LOSSES = {
    "cross_entropy": Loss.CROSS_ENTROPY,
    "categorical_crossentropy": Loss.CROSS_ENTROPY,
    "sparse_categorical_crossentropy": Loss.CROSS_ENTROPY,
    "binary_crossentropy": Loss.BINARY,
    "mse": Loss.SQUARED_ERROR,
    "mean_squared_error": Loss.SQUARED_ERROR,
    "mae": Loss.ABSOLUTE_ERROR,
    "mean_absolute_error": Loss.ABSOLUTE_ERROR,
    "huber": Loss.HUBER,
}
_SIGMOID = Function("sigmoid")
#: Keras' names of the accuracy, which is always there.
_ACCURACY = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")


def parse_loss(network, given, weights=None):
    """Returns the :class:`sim.ir.losses.Loss` of an argument `loss`, or the JointLoss of a network with several outputs. Raises
    ArgumentError for other names."""
    outputs = {one.name: one for one in network.origin.outputs if not one.label}
    if not network.origin.is_split:
        if weights is not None:
            raise ArgumentError("`loss_weights` is for a model with several outputs; leave it out")
        return _loss(given)
    losses, weights = _by_output("loss", given, outputs), _by_output("loss_weights", 1.0 if weights is None else weights, outputs)
    for name in outputs:
        losses[name], weight = _loss(losses[name]), weights[name]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < np.inf:
            raise ArgumentError(f"`loss_weights` must be numbers above 0, not {shown(weight)} for {name}")
    places = {name: one.place for name, one in outputs.items()}
    heads = [Head(n, losses[n], float(weights[n]), at.start, at.stop - at.start) for n, at in places.items()]
    return JointLoss(tuple(heads))


def _loss(given):
    name, _ = loss_name(given)
    if isinstance(name, str) and name.startswith("huber:"):
        with suppress(ValueError):
            if 0 < (delta := float(name.partition(":")[2])) < np.inf:
                return Huber(delta)
    check_name("loss", name, _LOSSES, ", or huber:DELTA, such as huber:0.5")
    return _LOSSES[name]


def _by_output(argument, given, names):
    """Returns a dict by output of an argument that is a dict, a list, or one value for all outputs."""
    if isinstance(given, (str, int, float)):
        return dict.fromkeys(names, given)
    found = given if isinstance(given, dict) else dict(zip(names, given)) if len(given) == len(names) else {}
    if found.keys() != names.keys():
        raise ArgumentError(f"`{argument}` must have an entry for each output, {', '.join(names)}, not {shown(given)}")
    return found


class Metrics:
    """The metrics of an argument `metrics`. Raises ArgumentError for other arguments.

    Parameters
    ----------
    network : sim.ir.graph.Graph
        The network, as it was loaded.
    loss : sim.ir.losses.Loss
    given : str, function, or sequence
        Names of metrics and of losses. `function(labels, results)` returns a number.
    """

    def __init__(self, network, loss, given):
        self._network, self._loss = network, loss
        if isinstance(loss, JointLoss) and given:
            raise ArgumentError("`metrics` are for a model with one output; loss and accuracy of each output are always there")
        given = [given] if isinstance(given, str) or callable(given) else given
        self._of_classes, self._others = [], []
        for one in map(metric_name, given):
            if callable(one) and not isinstance(one, type):
                self._others.append((getattr(one, "__name__", type(one).__name__), one))
            elif isinstance(one, str) and one in _LOSSES and not _LOSSES[one].is_of_logits and not loss.is_of_classes:
                self._others.append((one, _LOSSES[one]))
            elif not (loss.is_of_logits and isinstance(one, str) and one in _ACCURACY):
                self._of_classes.append(self._name_of_classes(one))

    def _name_of_classes(self, name):
        try:
            name = parse_metric(name)
        except (TypeError, ValueError) as error:
            text = error if isinstance(name, str) else f"{shown(name)} is neither a name nor a function of labels and results"
            raise ArgumentError(f"`metrics`: {text}") from None
        if not self._loss.is_of_classes:
            raise ArgumentError(f"`metrics`: {name!r} needs the loss cross_entropy; leave it out, or give a function")
        return name

    def __bool__(self):
        return bool(self._of_classes or self._others)

    def __call__(self, logits, labels):
        """Computes the metrics. Returns {name: number or list}.

        Parameters
        ----------
        logits : array (count, output size)
            Results, before a Softmax or a Sigmoid that belongs to the loss.
        labels : array
            As in :class:`sim.trainer.samples.LabelledSamples`.
        """
        if isinstance(self._loss, JointLoss):
            return _by_name(Score.by_output(self._loss, logits, labels))
        positions = Positions(self._network)
        vectors = positions.vectors(logits)
        found = measured(self._of_classes, vectors, labels.reshape(len(labels), -1)) if self._of_classes else {}
        if not self._others:
            return found
        if _has_probabilities(self._network, self._loss):
            of_classes = self._loss.is_of_classes
            vectors = softmax(vectors.reshape(-1, positions.classes)) if of_classes else _SIGMOID.exact(vectors)
        results = positions.flat(np.asarray(vectors, np.float32).reshape(len(logits), -1, positions.classes))
        results = self._network.origin.output.shaped(results)
        wanted = labels if self._loss.is_of_classes else labels.astype(np.float32).reshape(results.shape)
        for name, one in self._others:
            if isinstance(one, Loss):
                found[name] = loss_of(one, results.reshape(len(results), -1), wanted.reshape(len(wanted), -1))
            else:
                found[name] = float(one(wanted, results))
        return found


def _has_probabilities(network, loss):
    """Returns True if the ONNX model ends in the Softmax or the Sigmoid of the loss."""
    last = network.stages[-1]
    if loss is Loss.BINARY:
        return last.function == _SIGMOID
    return loss.is_of_classes and (bool(last.softmax) or network.origin.output.last == "softmax")


def with_logits(network, loss):
    """Returns a network without the Sigmoids that belong to its losses. In bfloat16, probabilities near 1 become 1."""
    if isinstance(loss, JointLoss):
        order = np.arange(network.output_size) if network.output_order is None else np.asarray(network.output_order)
        stages = tuple(logits_of_output(network, loss, order, stage) for stage in network.stages)
    elif loss is Loss.BINARY and network.stages[-1].function == _SIGMOID:
        stages = (*network.stages[:-1], replace(network.stages[-1], function=NONE))
    else:
        return network
    return network if list(stages) == list(network.stages) else replace(network, stages=stages)


def evaluation(run, whole, y, loss, metrics=(), smoothing=0.0):
    """Returns the loss and the metrics of an :class:`.InferenceRun`, as described in :meth:`sim.tpu.model.Model.evaluate`.
    `whole` is the network of the model, with its last functions, and with a vector of classes for each position. `smoothing` is
    the label smoothing of the loss."""
    network, origin = run.network, run.network.origin
    if origin.is_split:
        return _of_outputs(run, y, loss)
    metrics = Metrics(whole, loss, metrics)
    values = run.outputs[origin.output.name] if run.result is None else run.result.logits
    values = np.asarray(values, np.float64).reshape(len(run.rows), -1)
    positions, shares = Positions(whole), shares_of(whole, y, len(values), loss)
    labels = labels_of(whole, y if shares is None else shares.argmax(axis=-1), len(values), loss)
    # The Softmax of a file is applied by the host, after the results of a core.
    if _has_probabilities(network, loss) and (run.result is None or network.stages[-1].softmax):
        values = _logits(values, loss)
    vectors = positions.vectors(values)
    if not loss.is_of_classes:
        wanted = labels.astype(np.float32) * (1 - smoothing) + smoothing / 2 if smoothing else labels
        score = Score.of_numbers(loss, vectors, positions.vectors(wanted))
    else:
        wanted = labels.reshape(len(values), -1)
        score = Score.of(vectors, wanted)
        if smoothing:
            shares = one_hot(wanted, positions.classes, smoothing) if shares is None else _smoothed(shares, smoothing)
    mean = score.loss if shares is None else cross_entropy(vectors, shares, wanted != PADDING)
    accuracy = {} if score.accuracy is None else {"accuracy": score.accuracy}
    return {"loss": mean} | accuracy | metrics(values, labels)


def _smoothed(shares, smoothing):
    return shares * (1 - smoothing) + smoothing / shares.shape[-1]


def _of_outputs(run, y, loss):
    """Returns the joint loss, and the loss and accuracy of each output."""
    labels, logits = joint_labels(loss, y, len(run.rows)), []
    for head in loss.heads:
        output = next(one for one in run.network.origin.outputs if one.name == head.name)
        values = np.asarray(run.outputs[head.name], np.float64).reshape(len(labels), head.size)
        logits.append(_logits(values, head.loss) if _ends_in(run.network, output, head.loss) else values)
    logits = np.concatenate(logits, axis=1)
    score = Score.of_outputs(loss, logits, labels)
    accuracy = {} if score.accuracy is None else {"accuracy": score.accuracy}
    return {"loss": score.loss} | accuracy | _by_name(Score.by_output(loss, logits, labels))


def _ends_in(network, output, loss):
    """Returns True if an output is the Softmax or the Sigmoid of its loss."""
    order = network.output_order
    place, first = output.place.start if order is None else order[output.place.start], 0
    for name in network.outputs:
        first += network.tensors[name].channels
        if place < first:
            stage = next(one for one in network.stages if one.output == name)
            is_softmax = bool(stage.softmax) or output.last == "softmax"
            return is_softmax if loss.is_of_classes else loss.is_of_logits and stage.function == _SIGMOID
    return False


def _by_name(scores):
    """Returns `{"NAME_loss": loss, "NAME_accuracy": accuracy}` of the scores of outputs."""
    found = {}
    for name, one in scores.items():
        found |= {f"{name}_loss": one.loss} | ({} if one.accuracy is None else {f"{name}_accuracy": one.accuracy})
    return found


def _logits(probabilities, loss):
    with np.errstate(divide="ignore"):
        least = np.finfo(np.float32).tiny
        found = np.log(np.maximum(probabilities, least))
        return found if loss.is_of_classes else found - np.log(np.maximum(1 - probabilities, least))

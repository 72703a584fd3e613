"""A writer of ONNX files with new weights for a network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

from ..autodiff.embeddings import with_embeddings
from ..autodiff.trainable_parameters import with_probabilities
from ..data.samples import random_samples
from ..frontend.reader import read_model
from ..golden.network import run_network
from ..golden.training import bound_graph, initial_state
from ..ir.errors import ModelError
from ..ir.losses import JointLoss
from ..ir.optimizers import Sgd
from .plain import plain_model
from .scales import parameter_values
from .sources import find_weights

__all__ = ["ModelWriter"]

_SAMPLES = 2  # number of random samples on which a plain model is compared
#: Message if the original file cannot hold the trained weights, and no plain model can take its place.
_REFUSAL = "its file cannot hold the new weights, and {}; write the weights of each layer as one initializer, float32"


class ModelWriter:
    """Creates ONNX models of a network with new values of its parameters. Raises ModelError if no ONNX file can represent the
    network. The message is one line.

    If the original file contains each value of the parameters once, the values are replaced there; names, operators and types
    stay the same. Otherwise the result is a plain model of the network's stages.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        The network of a file, with parameters. A network without an `origin` has no original file.

    Attributes
    ----------
    own_form : bool
        True if models are the original file with new values.
    scales : dict or None
        :attr:`.FileWeights.scales`. None if `own_form` is False.
    """

    def __init__(self, graph):
        self._parameters, self._path = graph.parameters, graph.origin.path if graph.origin else Path("model.onnx")
        self._shapes = graph.origin.fixed if graph.origin else {}
        self._weights = find_weights(self._path, graph.parameters, self._shapes) if graph.origin else None
        _, self.own_form = self.model(bound_graph(graph, initial_state(graph, Sgd())))
        self.scales = self._weights.scales if self.own_form else None

    def with_updates(self, graph):
        """Returns the graph whose step updates parameters as the file's weights: copies of one value in a parameter stay equal,
        and an optimizer knows the factor of a parameter."""
        if not self.own_form:
            return graph
        made, names = graph.copied(), [*self._parameters]
        made.ties = {}
        for number, one in self._weights.ties.items():
            name = names[number]
            made.ties[name] = made.constant(f"copies in {name}", one.astype(np.float32).astype(bfloat16)[None])
        for name, size in zip(names, self._weights.sizes):
            made.parameters[name] = replace(made.parameters[name], scale=size)
        return made

    def held(self):
        """Returns the initializers that hold each parameter, if `own_form` is True, as
        {parameter: [(initializer, int array, array)]}. The arrays are indices in the flattened initializer, and the parameter's
        initial values there. The entry None has the initializers that hold zeros or ones, as others took up their values."""
        values = [one.initial for one in self._parameters.values()]
        return dict(zip(self._parameters, self._weights.held(values))) | {None: self._weights.emptied()}

    def model(self, graph):
        """Returns `(model, own)` for a graph with the same stages: an onnx.ModelProto with the graph's parameters, and True if it
        is the original file with new values.

        When the model is read again, it computes the same bits as the graph. Raises sim.ir.errors.ModelError.
        """
        if self._weights is not None and (model := self._own_model(graph)) is not None:
            return model, True
        if graph.feeds or isinstance(graph.loss, JointLoss):
            raise _refusal(graph, "a plain model has no embeddings, and one input and output")
        graph = with_probabilities(graph)
        try:
            model = plain_model(graph)
        except ModelError as error:
            raise _refusal(graph, f"a plain model cannot take its place: {error}") from None
        again, samples = read_model(model, self._path), random_samples(graph, _SAMPLES, seed=1).rows
        if not _same_bits(run_network(again, samples.reshape(_SAMPLES, *again.input_shape)), run_network(graph, samples)):
            raise _refusal(graph, "no model of Conv and MaxPool produces the same bits")
        return model, False

    def _own_model(self, graph):
        """Returns the original file with new values. Returns None if the file cannot represent them, such as biases in a narrow
        number type."""
        values = parameter_values(graph, self._parameters)
        model = self._weights.filled(values)
        try:
            again = with_embeddings(read_model(model, self._path, shapes=self._shapes))
            again = parameter_values(again, self._parameters)
        except ModelError:
            return None
        return model if all(map(_same_bits, again, values)) else None


def _refusal(graph, cause):
    return ModelError(f"{graph.name}: {_REFUSAL.format(cause)}")


def _same_bits(one, two):
    return one is not None and one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()

"""ONNX files of a network with other weights than those it was read with."""

from pathlib import Path

from ..data.samples import random_samples
from ..frontend.reader import read_model
from ..golden.network import run_network
from ..ir.errors import ModelError
from .plain import plain_model
from .sources import find_weights, parameter_values

__all__ = ["ModelWriter"]

_SAMPLES = 2  # of random numbers, on which a plain model is compared


class ModelWriter:
    """Writes a network with new values of its parameters.

    Where the file that the network was read from holds each parameter's values, they are replaced there, and all names, operators
    and types stay. Else it is a plain model of the network's stages.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        The network as it was read; without an origin there is no file.
    parameters : sequence of sim.ir.training.Parameter

    Raises
    ------
    sim.ir.errors.ModelError
        If there is no ONNX file of it; one line.
    """

    def __init__(self, graph, parameters):
        self._parameters, self._path = tuple(parameters), graph.origin.path if graph.origin else Path("model.onnx")
        self._weights = find_weights(self._path, parameters) if graph.origin else None
        self.model(graph)

    def model(self, graph):
        """`(model, whether it is the network's own file with other values)` for a graph of the same stages: an onnx.ModelProto
        that gives the same bits when it is read again. Raises sim.ir.errors.ModelError."""
        if self._weights is not None and (model := self._own_model(graph)) is not None:
            return model, True
        model = plain_model(graph)
        again, samples = read_model(model, self._path), random_samples(graph, _SAMPLES, seed=1).rows
        if not _same_bits(run_network(again, samples.reshape(_SAMPLES, *again.input_shape)), run_network(graph, samples)):
            raise ModelError(f"{graph.name}: can't be written as an ONNX model of Conv and MaxPool that has the same bits")
        return model, False

    def _own_model(self, graph):
        """None if the file can't hold the values, as biases in a narrow type."""
        values = parameter_values(graph, self._parameters)
        model = self._weights.filled(values)
        try:
            again = parameter_values(read_model(model, self._path), self._parameters)
        except (ModelError, IndexError):
            return None
        return model if all(map(_same_bits, again, values)) else None


def _same_bits(one, two):
    return one is not None and one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()

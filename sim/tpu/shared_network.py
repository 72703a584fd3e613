"""A network whose weights are exchanged, so that blocks of equal shape share its instructions."""

import re
from dataclasses import replace

import numpy as np

from ..compiler.compile import compile_network
from ..golden.arithmetic import round_bfloat16
from ..ir.row_norms import with_row_norms
from .load import load

__all__ = ["SharedNetwork"]


class SharedNetwork:
    """A network whose weights are exchanged.

    Parameters
    ----------
    proto : callable
        Called with weights by name, float32 (outputs, inputs) or (inputs,). Returns an onnx.ModelProto.
    shapes : dict of str to tuple of int
        Shapes of these weights. Vectors keep values of 1.
    config : Config
        Configuration of the core.
    """

    def __init__(self, proto, shapes, config):
        weights = {name: _like(shape) for name, shape in shapes.items()}
        network = load(proto(weights), effort="fast", strict=True).network
        self.network, self.config, self._program = with_row_norms(network, config), config, None
        self._places = {name: [*self._found(name, one)] for name, one in weights.items() if one.ndim > 1}

    def _found(self, name, weights):
        """Yields `(name of a constant, order of the inputs in it, its outputs)` for each constant with some of these weights."""
        whole, left = round_bfloat16(weights.T), weights.size
        for key, values in self.network.constants.items():
            if re.fullmatch(rf"{name}(_\d+)?\.weights", key):
                part = values.reshape(len(whole), -1)
                yield (key, *_place(whole, part))
                left -= part.size
        if left:
            raise KeyError(name)

    def with_weights(self, weights):
        """Returns the :class:`sim.ir.graph.Graph` with other weights by name, bfloat16 (inputs, outputs)."""
        graph = self.network.copied()
        for name, places in self._places.items():
            for key, order, outputs in places:
                graph.constants[key] = weights[name][order, outputs].reshape(graph.constants[key].shape)
        return graph

    def program(self, graph):
        """Returns the program of a graph of :meth:`with_weights`. All have the same instructions, of which there is one copy."""
        made = compile_network(graph, self.config, 1, "fast")
        if self._program is None:
            self._program = made
        size = made.instructions * self.config.instruction_bytes
        assert made.model[:size] == self._program.model[:size], "weights change the instructions"
        return replace(self._program, model=made.model)

    def rows(self, values):
        """Returns samples, float32 (samples, values), from arrays by the names of the inputs, with the samples first."""
        arrays = [np.asarray(values[one.name], np.float32) for one in self.network.origin.inputs]
        return np.concatenate([one.reshape(len(one), -1) for one in arrays], axis=1)

    def named(self, results):
        """Returns the outputs by name, with the samples first."""
        return {one.name: one.of(results) for one in self.network.origin.outputs}


def _place(whole, part):
    """Returns the order of the inputs of `whole` and the range of its outputs in `part`, both (inputs, outputs)."""
    count = part.shape[1]
    for first in range(0, whole.shape[1] - count + 1, count):
        numbers = {row.tobytes(): number for number, row in enumerate(whole[:, first : first + count])}
        order = [numbers.get(row.tobytes()) for row in part]
        if None not in order:
            return np.array(order), slice(first, first + count)
    raise ValueError("weights that are not neighbours share a constant")


def _like(shape):
    """Returns a vector of 1, or a matrix whose rows differ and that the reader does not simplify."""
    random = np.random.default_rng(0)
    return np.ones(shape, np.float32) if len(shape) == 1 else random.uniform(0.5, 0.9, shape).astype(np.float32)

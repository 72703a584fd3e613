"""Constants of an ONNX file that are added to each other, such as the biases of two layers in a residual sum."""

from collections import Counter

from onnx import numpy_helper

from .recurrent_biases import added_halves

__all__ = ["added_biases"]

_KEPT = {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Expand"}  # operators that keep values
_BIASES = {"Conv": 2, "Gemm": 2}  # operator: the index of its input with the bias


def added_biases(model):
    """Returns the names of initializers of an onnx.ModelProto that are added to other initializers, one of each sum excepted.

    A network has one parameter for each sum. A file with zeros in these initializers can hold it in the one that is left, which
    has the most values, such as a table of positions.
    """
    return _Sums(model).added


class _Sums:
    def __init__(self, model):
        graph = model.graph
        self._sizes = {one.name: numpy_helper.to_array(one).size for one in graph.initializer}
        self._readers = Counter(name for node in graph.node for name in node.input)
        self._readers.update(one.name for one in graph.output)
        self._constants = {name: [name] for name in self._sizes}  # name of a tensor -> initializers that are terms of its sums
        self.added = added_halves(model)
        for node in graph.node:
            self._constants[node.output[0]] = self._of(node)

    def _of(self, node):
        if node.op_type == "Add":
            fewer, more = sorted(map(self._operand, node.input), key=lambda names: sum(self._sizes[name] for name in names))
            self.added += fewer
            return more
        if node.op_type == "Concat":
            return [name for operand in node.input for name in self._operand(operand)]
        if node.op_type in _KEPT:
            return self._operand(node.input[0])
        place = _BIASES.get(node.op_type)
        return [name for bias in node.input[place : place + 1] for name in self._operand(bias)] if place else []

    def _operand(self, name):
        """Returns the terms of an operand. A result with several readers is a sum of its own."""
        return self._constants.get(name, []) if self._readers[name] == 1 or name in self._sizes else []

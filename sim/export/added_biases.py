"""Biases of an ONNX file to which another constant is added, such as the bias of a convolution before a table of positions."""

from onnx import numpy_helper

__all__ = ["added_biases"]

_KEPT = {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat"}  # operators that only move values
_BIASES = {"Conv": 2, "Gemm": 2}  # operator: the index of its input with the bias


def added_biases(model):
    """Returns the names of initializers of an onnx.ModelProto that are biases, and whose sums get another initializer added.

    A network has one parameter for both. A file with zeros in the bias can hold this parameter in the other initializer.
    """
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    readers = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return [name for name, result in _biases(model, constants) if _is_added_to(result, readers, constants)]


def _biases(model, constants):
    """Yields `(bias, name of the sums)` for each node that adds a bias."""
    for node in model.graph.node:
        place = _BIASES.get(node.op_type)
        if place is not None and len(node.input) > place and node.input[place] in constants:
            yield node.input[place], node.output[0]
        elif node.op_type == "Add":
            yield from ((name, node.output[0]) for name in node.input if name in constants and constants[name].ndim == 1)


def _is_added_to(name, readers, constants):
    """Returns True if a value, or a value with its numbers at other places, is added to an initializer."""
    for node in readers.get(name, ()):
        if node.op_type == "Add" and any(other in constants for other in node.input):
            return True
        if node.op_type in _KEPT and any(_is_added_to(result, readers, constants) for result in node.output):
            return True
    return False

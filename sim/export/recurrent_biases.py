"""Biases of recurrent layers in an ONNX file: a layer adds the biases of its input and of its state."""

import numpy as np
from onnx import helper, numpy_helper

__all__ = ["ADDED", "added_halves", "split_recurrent_biases"]

ADDED = ", added"  # end of the names of nodes that another step than the exporter adds
_LAYERS = ("LSTM", "GRU", "RNN")
_STATE = ", biases of the state"


def split_recurrent_biases(model):
    """Replaces the initializer B of each recurrent layer in an onnx.ModelProto by a Concat of its parts."""
    graph = model.graph
    tensors = {one.name: one for one in graph.initializer}
    for node in [node for node in graph.node if node.op_type in _LAYERS and len(node.input) > 3]:
        name = node.input[3]
        if name not in tensors or len(tensors[name].dims) != 2:
            continue
        array = numpy_helper.to_array(tensors[name])
        cuts = _cuts(node, array.shape[1])
        names = [f"{name}, biases of the input", name + _STATE, f"{name}, bias of the new state"][: len(cuts) + 1]
        parts = map(np.ascontiguousarray, np.split(array, cuts, axis=1))
        graph.initializer.remove(tensors.pop(name))
        graph.initializer.extend(map(numpy_helper.from_array, parts, names))
        graph.node.insert(0, helper.make_node("Concat", names, [name], f"{name}{ADDED}", axis=1))


def _cuts(node, size):
    """Returns the places at which B is cut. The last part of a GRU with `linear_before_reset` is not added to another one."""
    if any(one.name == "linear_before_reset" and one.i for one in node.attribute):
        return [size // 2, size // 6 * 5]
    return [size // 2]


def added_halves(model):
    """Returns the names of the initializers that recurrent layers add to other initializers, of a model after
    :func:`split_recurrent_biases`."""
    return [one.name for one in model.graph.initializer if one.name.endswith(_STATE)]

"""Weights as numbers, by which they are found in an exported ONNX model.

Exporters rename and transpose weights, and merge equal ones, such as two biases of zeros. So while an object is exported, each
value of its weights is replaced by a number of its own. The numbers found in the file are then replaced by the values.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..export.recurrent_biases import ADDED, split_recurrent_biases

__all__ = ["MOST_NUMBERS", "ends_of", "find_numbers", "flat_of", "numbers_of", "parts_of"]

_FIRST, MOST_NUMBERS = 1 << 23, 1 << 23  # integers from 2^23 to 2^24 are exact in binary32, and rare as constants


def flat_of(weights):
    """Returns the values of all weights in one array. It is empty if there are none."""
    return np.concatenate([np.zeros(0, np.float16), *(array.ravel() for array in weights.values())])


def ends_of(weights):
    """Returns the end of each weight in the array of :func:`flat_of`."""
    return np.cumsum([array.size for array in weights.values()], dtype=np.int64)


def parts_of(flat, weights):
    """Returns a list with the part of each weight in an array as :func:`flat_of` returns it."""
    return np.split(flat, ends_of(weights)[:-1])


def numbers_of(every, weights):
    """Returns `{name: array}` with a number of its own for each value of `weights`, some of the weights in `every`."""
    firsts = {name: _FIRST + end - every[name].size for name, end in zip(every, ends_of(every))}
    return {
        name: np.arange(firsts[name], firsts[name] + array.size, dtype=np.float64).reshape(array.shape).astype(array.dtype)
        for name, array in weights.items()
    }


def find_numbers(model, every):
    """Replaces the numbers in an onnx.ModelProto by the values of `every`. Initializers with the same numbers become one.

    Returns `(places, counts)`: the places of an initializer's values in the array of :func:`flat_of`, `{initializer: array}`, and
    how often each value of a weight was found, `{name: array}`.
    """
    _lift_constants(model.graph)
    split_recurrent_biases(model)
    flat = flat_of(every).astype(np.float32)
    found, counts = {}, np.zeros(flat.size, np.int64)
    for one in list(model.graph.initializer):
        array = numpy_helper.to_array(one)
        if array.dtype != np.float32 or not array.size or not ((array >= _FIRST) & (array < _FIRST + counts.size)).all():
            continue
        places = array.astype(np.int64) - _FIRST
        same = [name for name, other in found.items() if np.array_equal(other, places)]
        if same:  # a layer that several operators share
            model.graph.initializer.remove(one)
            for node in model.graph.node:
                node.input[:] = [same[0] if name == one.name else name for name in node.input]
            continue
        tied = [name for name, other in found.items() if places.ndim == 2 and np.array_equal(other, places.T)]
        if tied:  # one weight in both forms, as a table of embeddings that computes logits too
            model.graph.initializer.remove(one)
            model.graph.node.insert(0, helper.make_node("Transpose", tied, [one.name], f"{one.name}{ADDED}"))
            continue
        found[one.name] = places
        np.add.at(counts, places.ravel(), 1)
        one.CopyFrom(numpy_helper.from_array(flat[places], one.name))
    return found, dict(zip(every, parts_of(counts, every)))


def _lift_constants(graph):
    """Makes initializers of the constants of type float32."""
    for node in [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        tensor = node.attribute[0].t
        if tensor.data_type == TensorProto.FLOAT and numpy_helper.to_array(tensor).size > 0:
            graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(tensor), node.output[0]))
            graph.node.remove(node)

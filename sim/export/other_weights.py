"""Weights that are equal by chance, as in layers that were copied when they were new, told from weights that are one."""

import numpy as np
import onnx
from onnx import numpy_helper

from ..frontend.operators.normalization import NORMALIZATIONS
from ..frontend.reader import read_model
from ..ir.errors import ModelError
from .scales import FLOATS

#: Operator: the index of its first input that may be a bias.
_BIASES = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "Add": 0, "Concat": 0, "LSTM": 3, "GRU": 3, "RNN": 3}
_BIASES |= dict.fromkeys(NORMALIZATIONS, 1) | {"Split": 0, "Slice": 0}

__all__ = ["with_other_weights"]


def with_other_weights(graph):
    """Returns the graph of a network's file with other values in each matrix of weights. Returns None if the file cannot be read
    with other values."""
    model, rng = onnx.load(graph.origin.path), np.random.default_rng(1)
    biases = {name for node in model.graph.node if node.op_type in _BIASES for name in node.input[_BIASES[node.op_type] :]}
    for one in model.graph.initializer:
        if one.data_type in FLOATS and (len(one.dims) > 1 or one.name in biases):
            array = numpy_helper.to_array(one)
            changed = array * rng.uniform(1, 2, array.shape).astype(np.float32)
            changed += rng.uniform(1, 2, array.shape) if one.name in biases and array.size > 1 else 0
            one.CopyFrom(numpy_helper.from_array(changed.astype(array.dtype), one.name))
    try:
        return read_model(model, graph.origin.path, shapes=graph.origin.fixed)
    except ModelError:
        return None

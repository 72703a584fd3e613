"""Search for the initializers of an ONNX file that contain the network's parameters.

The indices of all values in the initializers are written as numbers of several digits. The file is read once per digit, with each
weight replaced by that digit of its index. The weights of the resulting network are then the digits of each parameter's source
index. This method needs no rules about operators, layouts or orders. If a weight combines several values, as in a folded
BatchNormalization, the result is not a valid digit, and the search fails.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from ..frontend.reader import read_model
from ..ir.errors import ModelError

__all__ = ["FileWeights", "find_weights"]

_BASE = 128  # base of the digits, which are written as 1 to 128: exact in every number type, also in bfloat16
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True, eq=False)
class FileWeights:
    """An ONNX file whose initializers contain each value of the parameters exactly once.

    Parameters
    ----------
    model : onnx.ModelProto
    names : tuple of str
        Names of the initializers that contain parameters.
    places : tuple of int array
        For each parameter, an array of its shape. It has the index of each value in the concatenation of all flattened
        initializers.
    """

    model: onnx.ModelProto
    names: tuple[str, ...]
    places: tuple[np.ndarray, ...]

    def filled(self, values):
        """Returns the ONNX model with new values of the parameters, one array per parameter."""
        arrays = _arrays(self.model, self.names)
        flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays.values()])
        for places, array in zip(self.places, values):
            flat[places] = array
        return _with(self.model, arrays, flat)


def _arrays(model, names):
    """Returns the named initializers as {name: array}, in the order of the file."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in names}


def _with(model, arrays, flat):
    """Returns a copy of a model with new values in the initializers `arrays`. `flat` has the values of all these initializers,
    flattened and concatenated."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    ends = np.cumsum([array.size for array in arrays.values()])
    new = {
        name: part.reshape(array.shape).astype(array.dtype)
        for (name, array), part in zip(arrays.items(), np.split(flat, ends[:-1]))
    }
    for tensor in changed.graph.initializer:
        if tensor.name in new:
            tensor.CopyFrom(numpy_helper.from_array(new[tensor.name], tensor.name))
    return changed


def parameter_values(graph, parameters):
    """Returns the values of the parameters in a graph that has the same stages. A missing bias is None."""
    stages = [graph.stages[one.stage] for one in parameters]
    return [stage.bias if one.term is None else stage.terms[one.term].weights for one, stage in zip(parameters, stages)]


def find_weights(path, parameters, shapes=None):
    """Finds the initializers that contain the parameters. Returns :class:`FileWeights`. Returns None if values of initializers
    and parameters do not correspond one to one.

    Parameters
    ----------
    path : path
        ONNX file that :func:`sim.frontend.load.load_network` can read.
    parameters : sequence of sim.ir.training.Parameter
        Parameters of the file's network.
    shapes : dict or None
        Shapes that the user gave to inputs; see :func:`sim.frontend.load.load_network`.
    """
    model = onnx.load(path)
    sizes = {one.initial.size for one in parameters}
    names = tuple(
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type in _FLOATS and int(np.prod(tensor.dims)) in sizes and int(np.prod(tensor.dims)) > 0
    )
    arrays = _arrays(model, names)
    total = sum(array.size for array in arrays.values())
    if total < sum(one.initial.size for one in parameters):
        return None
    numbers, unit = [np.zeros(one.initial.shape, np.int64) for one in parameters], 1
    while unit < total:
        tags = 1 + np.arange(total) // unit % _BASE
        try:
            tagged = read_model(_with(model, arrays, tags.astype(np.float64)), path, shapes=shapes)
            found = parameter_values(tagged, parameters)
        except (ModelError, IndexError):
            return None
        for place, digits in zip(numbers, found):
            if digits is not None and digits.ndim < place.ndim:  # equal bias rows
                digits = np.broadcast_to(digits, place.shape)
            if digits is None or digits.shape != place.shape or not _are_digits(digits.astype(np.float32)):
                return None
            place += unit * (digits.astype(np.int64) - 1)
        unit *= _BASE
    every = np.concatenate([place.ravel() for place in numbers])
    if len(np.unique(every)) < len(every) or every.max() >= total:
        return None
    return FileWeights(model, names, tuple(numbers))


def _are_digits(values):
    return ((values >= 1) & (values <= _BASE) & (values == np.rint(values))).all()

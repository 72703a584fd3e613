"""The source of a network: the ONNX model, and the binary64 network before rounding."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..ir.model_ends import ModelInput, ModelOutput, ResultShape
from .fuse import in_order
from .nodes import Constant

__all__ = ["Origin", "make_origin"]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_LABELS = {"ArgMax": 0, "ZipMap": 0, "ArrayFeatureExtractor": 1}  # operator: index of the input with the values


@dataclass(frozen=True, eq=False)
class Origin:
    """The ONNX model of a network, and its nodes in binary64."""

    path: Path  # path of the model file
    inputs: tuple[ModelInput, ...]  # inputs, in the file's order
    batch: int | None  # Batch size of the model. None: any size. 0: the model has no batch axis.
    outputs: tuple[ModelOutput, ...]
    #: Tuple of Node. The binary64 network (:mod:`sim.fusion.nodes`): fused but not rounded, in topological order.
    nodes: tuple
    ends: tuple  # Tuple of Node. The nodes that compute the results.
    order: np.ndarray  # Int array. Flat index (y, x, channel) in the ends, one after the other, for each value of the results.
    #: Dict of str to tuple of int. Shapes that the user gave to inputs, in place of the open sizes of the file, and the values of
    #: scalar inputs.
    fixed: dict
    constants: dict  # Dict of str to array. Scalar inputs of the file whose values the user gave.

    @property
    def input(self):
        """Returns the name of the model's input. Returns None if the model has several inputs."""
        return self.inputs[0].name if len(self.inputs) == 1 else None

    def feeds(self, rows, wide=False):
        """Returns an interpreter's inputs {name: array} for one batch of samples (count, values). With `wide`, floating-point
        inputs are binary64."""
        arrays = {}
        for one in self.inputs:
            kind = TensorProto.DOUBLE if wide and one.element in _FLOATS else one.element
            kind = helper.tensor_dtype_to_np_dtype(kind)
            arrays[one.name] = rows[:, one.place].reshape(len(rows), *one.shape).astype(kind)
        found = {name: np.asarray(array[0] if self.batch == 0 else array, order="C") for name, array in arrays.items()}
        for name, number in self.constants.items():
            found[name] = number.astype(np.float64) if wide and number.dtype.kind not in "iub" else number
        return found

    @property
    def compared(self):
        """Returns the outputs with numbers to compare: all outputs except labels. If there are only labels, it returns the
        numbers from which they are computed."""
        return tuple(output for output in self.outputs if not output.label) or (self.output,)

    @property
    def is_split(self):
        """Returns True if the outputs are different slices of the network's results."""
        return len({(output.place.start, output.place.stop) for output in self.outputs}) > 1

    @property
    def output(self):
        """Returns the first output that is not a label. If all are labels, it returns the first output."""
        return next((output for output in self.outputs if not output.label), self.outputs[0])


def make_origin(path, graph, *, inputs, batch, shapes, labels, left_out, places, ends, order, fixed):
    """Returns the :class:`Origin` of a network.

    Parameters
    ----------
    graph : onnx.GraphProto
    inputs : tuple of ModelInput
    batch : int or None
        Batch size as in :class:`Origin`, for inputs that leave it open.
    shapes : dict
        For each output name, the `(dims, batch, bare)` of :class:`.ResultShape`.
    labels : dict
        For each output name, "number" or "name" if the output contains classes, else "".
    left_out : dict
        For each output name, the operator that the host applies: "", "softmax" or "log".
    places : dict
        Name of an output to its slice of the results.
    ends, order, fixed
        Members of :class:`Origin`.
    """
    nodes = tuple(node for node in in_order(*ends) if not isinstance(node, Constant))
    kind = next(entry for entry in graph.input if entry.name == inputs[0].name).type.tensor_type
    if len(kind.shape.dim) == len(inputs[0].shape):
        batch = 0
    elif kind.shape.dim[0].dim_value > 0:
        batch = kind.shape.dim[0].dim_value
    producers = {name: made for made in graph.node for name in made.output if name}
    outputs = [
        ModelOutput(
            name,
            None if labels[name] == "name" else ResultShape(*shapes[name], has_batch=batch != 0),
            left_out[name],
            bool(labels[name]),
            _numbers(name, producers) if labels[name] else name,
            places[name],
        )
        for name in places
    ]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in fixed}
    return Origin(path, inputs, batch, tuple(outputs), nodes, ends, order, fixed, constants)


def _numbers(name, producers):
    """Returns the name of the ONNX tensor from which the label `name` is computed."""
    while name in producers:
        made = producers[name]
        place = _LABELS.get(made.op_type, 0)
        name = made.input[place]
        if made.op_type in ("ArgMax", "ZipMap"):
            break
    return name

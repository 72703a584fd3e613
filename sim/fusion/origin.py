"""The source of a network: inputs and outputs of the ONNX model, and the binary64 network before any rounding."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from .fuse import in_order
from .result_shape import ResultShape

__all__ = ["ModelInput", "Output", "Origin", "make_origin", "softmax"]

_LABELS = {"ArgMax": 0, "ZipMap": 0, "ArrayFeatureExtractor": 1}  # operator: index of the input with the values


@dataclass(frozen=True)
class ModelInput:
    """An input of the model.

    Parameters
    ----------
    name : str
    element : int
        Element type, of `onnx.TensorProto`.
    shape : tuple of int
        Shape of one sample.
    first : int
        Index of its first value in a flattened sample, which concatenates all inputs.
    """

    name: str
    element: int
    shape: tuple[int, ...]
    first: int = 0

    @property
    def place(self):
        """Slice of its values in a flattened sample."""
        return slice(self.first, self.first + prod(self.shape))


@dataclass(frozen=True)
class Output:
    """An output of the model.

    Parameters
    ----------
    name : str
    shapes : ResultShape or None
        Shapes of the output; None if it contains class names: one name per sample.
    last : str
        Operator that the host applies to the network's results: "" (none), "softmax" or "log" (LogSoftmax), over all values of a
        sample.
    label : bool
        The output contains class numbers or class names.
    value : str
        The model's value with the numbers: the output itself, or the value from which a label is computed.
    place : slice
        Position of its numbers in the network's results.
    """

    name: str
    shapes: ResultShape | None
    last: str
    label: bool
    value: str
    place: slice

    @property
    def shape(self):
        """Shape of one sample."""
        if self.shapes is None:
            return ()
        return () if self.label and prod(self.shapes.sample) != 1 else self.shapes.sample

    def shape_of(self, count):
        """Returns the ONNX shape for `count` samples; with None, an open batch has size None."""
        return (count,) if self.shapes is None else self.shapes.of(count)

    def finish(self, results):
        """Selects this output's values from the network's results (count, size), in binary64, and applies the host's operator."""
        values = np.asarray(results, np.float64)[:, self.place]
        return softmax(values, self.last == "log") if self.last else values

    def of(self, results):
        """Returns the output for the results of a network (count, size), in ONNX's shape: float32, or int64 classes."""
        return self.shaped(self.finish(results))

    def shaped(self, values):
        """Returns the output for finished values (count, size), in ONNX's shape: float32, or int64 classes."""
        values = values.argmax(axis=1) if self.label else values.astype(np.float32)
        return values.reshape(self.shape_of(len(values)))


@dataclass(frozen=True, eq=False)
class Origin:
    """The ONNX model of a network, and its nodes in binary64.

    Parameters
    ----------
    path : Path
        The file.
    inputs : tuple of ModelInput
        Inputs; all have the same element type.
    batch : int or None
        Batch size of the model; None: any; 0: the model has no batch axis.
    outputs : tuple of Output
    nodes : tuple of Node
        The binary64 network (:mod:`sim.fusion.nodes`): fused but not rounded, in topological order. The last node computes the
        results.
    order : int array
        Flat index (y, x, channel) in the last node for each value of the results.
    input_order : int array or None
        Index in a flattened sample for each position (y, x, channel) of the input. None: the same order.
    """

    path: Path
    inputs: tuple[ModelInput, ...]
    batch: int | None
    outputs: tuple[Output, ...]
    nodes: tuple
    order: np.ndarray
    input_order: np.ndarray | None = None

    @property
    def input(self):
        """Name of the model's input, or None if it has several."""
        return self.inputs[0].name if len(self.inputs) == 1 else None

    @property
    def element(self):
        """Element type of the inputs, of `onnx.TensorProto`."""
        return self.inputs[0].element

    def feeds(self, rows, dtype):
        """Returns an interpreter's inputs {name: array} for one batch of samples (count, values)."""
        arrays = {one.name: rows[:, one.place].reshape(len(rows), *one.shape).astype(dtype) for one in self.inputs}
        return {name: np.ascontiguousarray(array[0] if self.batch == 0 else array) for name, array in arrays.items()}

    @property
    def compared(self):
        """Outputs with values to compare: all that are not labels, or the only value behind the labels."""
        return tuple(output for output in self.outputs if not output.label) or (self.output,)

    @property
    def is_split(self):
        """True if the outputs are different slices of the results."""
        return len({(output.place.start, output.place.stop) for output in self.outputs}) > 1

    @property
    def output(self):
        """The first output that is not a label, else the first output."""
        return next((output for output in self.outputs if not output.label), self.outputs[0])


def softmax(values, logarithm=False):
    """Returns the softmax, or its logarithm, of the rows of a binary64 array."""
    with np.errstate(all="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        total = np.exp(values).sum(axis=1, keepdims=True)
        return values - np.log(total) if logarithm else np.exp(values) / total


def make_origin(path, graph, *, inputs, batch, shapes, labels, left_out, places, node, order, input_order):
    """Returns the :class:`Origin` of a network.

    Parameters
    ----------
    graph : onnx.GraphProto
    inputs : tuple of ModelInput
    batch : int or None
        Batch size, see :class:`Origin`, for inputs whose shape leaves it open.
    shapes : dict
        Name of an output to the `(dims, batch, bare)` of :class:`.ResultShape`.
    labels : dict
        Name of an output to "number" or "name" if it contains classes, else to "".
    left_out : dict
        Name of an output to the operator that the host applies: "", "softmax" or "log".
    places : dict
        Name of an output to its slice of the results.
    node, order, input_order
        Last node of the binary64 network, and orders, see :class:`Origin`.
    """
    nodes = tuple(in_order(node))
    kind = next(entry for entry in graph.input if entry.name == inputs[0].name).type.tensor_type
    if len(kind.shape.dim) == len(inputs[0].shape):
        batch = 0
    elif kind.shape.dim[0].dim_value > 0:
        batch = kind.shape.dim[0].dim_value
    producers = {name: made for made in graph.node for name in made.output if name}
    outputs = [
        Output(
            name,
            None if labels[name] == "name" else ResultShape(*shapes[name], has_batch=batch != 0),
            left_out[name],
            bool(labels[name]),
            _numbers(name, producers) if labels[name] else name,
            places[name],
        )
        for name in (entry.name for entry in graph.output)
    ]
    return Origin(path, inputs, batch, tuple(outputs), nodes, order, input_order)


def _numbers(name, producers):
    """Returns the name of the value from which a label is computed."""
    while name in producers:
        made = producers[name]
        place = _LABELS.get(made.op_type, 0)
        name = made.input[place]
        if made.op_type in ("ArgMax", "ZipMap"):
            break
    return name

"""What a network was read from: the ONNX model's own input and outputs, and its draft in binary64, before anything is rounded."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from .fuse import in_order
from .result_shape import ResultShape

__all__ = ["ModelInput", "Output", "Origin", "make_origin", "softmax"]

_LABELS = {"ArgMax": 0, "ZipMap": 0, "ArrayFeatureExtractor": 1}  # operator: which input it reads


@dataclass(frozen=True)
class ModelInput:
    """An input of the model.

    Parameters
    ----------
    name : str
    element : int
        Its type, of `onnx.TensorProto`.
    shape : tuple of int
        Of one sample.
    first : int
        Where its values begin in a flattened sample: all inputs, one after the other.
    """

    name: str
    element: int
    shape: tuple[int, ...]
    first: int = 0

    @property
    def place(self):
        """Its values in a flattened sample, a slice."""
        return slice(self.first, self.first + prod(self.shape))


@dataclass(frozen=True)
class Output:
    """An output of the model.

    Parameters
    ----------
    name : str
    shapes : ResultShape or None
        Its shapes; None if it names classes: one name for each sample.
    last : str
        What the host does to the network's results: "" nothing, "softmax" or "log" (LogSoftmax), over all values of a sample.
    label : bool
        Whether it says which class it is, or names it, rather than holding values.
    value : str
        The model's value that holds numbers: the output, or what a label is made of.
    place : slice
        Where its numbers are in the network's results.
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
        """The shape that ONNX has for this number of samples; None: of an open batch, whose size is None."""
        return (count,) if self.shapes is None else self.shapes.of(count)

    def finish(self, results):
        """Of the results of a network (count, size), its own in binary64, with what is left to the host."""
        values = np.asarray(results, np.float64)[:, self.place]
        return softmax(values, self.last == "log") if self.last else values

    def of(self, results):
        """Returns the output for the results of a network (count, size), in ONNX's shape: float32, or int64 classes."""
        return self.shaped(self.finish(results))

    def shaped(self, values):
        """The same of the model's value (count, size), with which nothing is left to do."""
        values = values.argmax(axis=1) if self.label else values.astype(np.float32)
        return values.reshape(self.shape_of(len(values)))


@dataclass(frozen=True, eq=False)
class Origin:
    """
    Parameters
    ----------
    path : Path
        The file.
    inputs : tuple of ModelInput
        Several are of the same type.
    batch : int or None
        Samples that the model takes at a time; None: any number; 0: it has no such axis.
    outputs : tuple of Output
    nodes : tuple of Node
        The draft (:mod:`sim.fusion.nodes`), fused but not rounded, each node after those that it needs; the last one makes the
        results.
    order : int array
        Of each value of the results: its place (y, x, channel) in the last node.
    input_order : int array or None
        Of each place (y, x, channel) of the input: its value in a flattened sample. None: in order.
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
        """The type of the inputs, of `onnx.TensorProto`."""
        return self.inputs[0].element

    def feeds(self, rows, dtype):
        """What an interpreter takes for samples (count, values), as many as it takes at a time: {input: array}."""
        arrays = {one.name: rows[:, one.place].reshape(len(rows), *one.shape).astype(dtype) for one in self.inputs}
        return {name: np.ascontiguousarray(array[0] if self.batch == 0 else array) for name, array in arrays.items()}

    @property
    def compared(self):
        """The outputs with values, of which one at least is there: a label's numbers are those of another one, or the only."""
        return tuple(output for output in self.outputs if not output.label) or (self.output,)

    @property
    def is_split(self):
        """Whether outputs have different numbers of the results."""
        return len({(output.place.start, output.place.stop) for output in self.outputs}) > 1

    @property
    def output(self):
        """The first output that holds values, else the first."""
        return next((output for output in self.outputs if not output.label), self.outputs[0])


def softmax(values, logarithm=False):
    """Softmax, or its logarithm, of the rows of a binary64 array."""
    with np.errstate(all="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        total = np.exp(values).sum(axis=1, keepdims=True)
        return values - np.log(total) if logarithm else np.exp(values) / total


def make_origin(path, graph, *, inputs, batch, shapes, labels, left_out, places, node, order, input_order):
    """The origin of a network.

    Parameters
    ----------
    graph : onnx.GraphProto
    inputs : tuple of ModelInput
    batch : int or None
        As :class:`Origin` has it, where the shape of the input leaves it open.
    shapes : dict
        Name of an output to `(dims, batch, bare)`, as the reader's tensors have them.
    labels : dict
        Name of an output to "number" or "name", if it says which class it is, else to "".
    left_out : dict
        Name of an output to "", "softmax" or "log": what of it is left to the host.
    places : dict
        Name of an output to its part of the results, a slice.
    node, order, input_order
        The last node of the fused draft, and orders, as in :class:`Origin`.
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
    """The name of the value that a label is made of."""
    while name in producers:
        made = producers[name]
        place = _LABELS.get(made.op_type, 0)
        name = made.input[place]
        if made.op_type in ("ArgMax", "ZipMap"):
            break
    return name

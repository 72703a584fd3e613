"""What a network was read from: the ONNX model's own input and outputs, and its draft in binary64, before anything is rounded."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from .fuse import in_order
from .nodes import Input

__all__ = ["Output", "Origin", "make_origin", "softmax"]

_LABELS = {"ArgMax": 0, "ZipMap": 0, "ArrayFeatureExtractor": 1}  # operator: which input it reads


@dataclass(frozen=True)
class Output:
    """An output of the model.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Of one sample.
    last : str
        What the host does to the network's results: "" nothing, "softmax" or "log" (LogSoftmax), over all values of a sample.
    label : bool
        Whether it says which class it is, or names it, rather than holding values.
    value : str
        The model's value that holds numbers: the output, or what a label is made of.
    """

    name: str
    shape: tuple[int, ...]
    last: str
    label: bool
    value: str

    def finish(self, results):
        """The results of a network (count, size), in binary64, with what is left to the host."""
        values = np.asarray(results, np.float64)
        return softmax(values, self.last == "log") if self.last else values

    def of(self, results):
        """What the model has at this output for the results of a network (count, size): float32 (count, *shape), or int64
        numbers of classes."""
        return self.shaped(self.finish(results))

    def shaped(self, values):
        """The same of the model's values (count, size), which nothing is left to do with."""
        values = values.argmax(axis=1) if self.label else values.astype(np.float32)
        return values.reshape(len(values), *self.shape)


@dataclass(frozen=True, eq=False)
class Origin:
    """
    Parameters
    ----------
    path : Path
        The file.
    input : str
        Name of the model's input.
    element : int
        Its type, of `onnx.TensorProto`.
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
    input: str
    element: int
    batch: int | None
    outputs: tuple[Output, ...]
    nodes: tuple
    order: np.ndarray
    input_order: np.ndarray | None = None

    @property
    def sample(self):
        """The shape of one sample at the input."""
        return next(node.sample for node in self.nodes if isinstance(node, Input))

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


def make_origin(path, graph, *, sample, batch, shapes, left_out, node, order, input_order):
    """The origin of a network.

    Parameters
    ----------
    graph : onnx.GraphProto
    sample : tuple of int
        Shape of one sample.
    batch : int or None
        As :class:`Origin` has it, where the shape of the input leaves it open.
    shapes : dict
        Name of an output to its shape, as the reader knows it, and whether it is a label.
    left_out : dict
        Name of an output to "", "softmax" or "log": what of it is left to the host.
    node, order, input_order
        The last node of the fused draft, and orders, as in :class:`Origin`.
    """
    nodes = tuple(in_order(node))
    entry = next(entry for entry in graph.input if any(isinstance(one, Input) and one.name == entry.name for one in nodes))
    kind = entry.type.tensor_type
    if len(kind.shape.dim) == len(sample):
        batch = 0
    elif kind.shape.dim[0].dim_value > 0:
        batch = kind.shape.dim[0].dim_value
    producers = {name: made for made in graph.node for name in made.output}
    outputs = []
    for entry in graph.output:
        dims, label = shapes[entry.name]
        outputs.append(
            Output(
                entry.name,
                _label_shape(entry, batch) if label else _sample_shape(dims, batch, len(order)),
                left_out[entry.name],
                label,
                _numbers(entry.name, producers) if label else entry.name,
            )
        )
    name = next(one.name for one in nodes if isinstance(one, Input))
    return Origin(path, name, kind.elem_type, batch, tuple(outputs), nodes, order, input_order)


def _sample_shape(dims, batch, size):
    """The shape of one sample's values."""
    shape = tuple(dims if batch == 0 else dims[1:])
    return shape if prod(shape) == size else (size,)


def _label_shape(entry, batch):
    """That of one sample's label, if the model says it."""
    dims = [d.dim_value for d in entry.type.tensor_type.shape.dim]
    shape = tuple(dims if batch == 0 else dims[1:])
    return shape if prod(shape) == 1 else ()


def _numbers(name, producers):
    """The name of the value that a label is made of."""
    while name in producers:
        made = producers[name]
        place = _LABELS.get(made.op_type, 0)
        name = made.input[place]
        if made.op_type in ("ArgMax", "ZipMap"):
            break
    return name

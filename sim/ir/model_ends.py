"""Inputs and outputs of an ONNX model: shapes for any number of samples, and operators that the host applies to results."""

from dataclasses import dataclass
from math import prod

import numpy as np

__all__ = ["ModelInput", "ModelOutput", "ResultShape", "softmax"]


@dataclass(frozen=True)
class ResultShape:
    """The shape of an output, as a function of the number of samples."""

    dims: tuple[int, ...]  # shape of the output for one sample, including all axes
    #: Axis that grows with the number of samples. All axes before it have size 1. None: the model takes one sample.
    batch: int | None
    bare: bool = False  # True if the batch axis is missing for one sample
    has_batch: bool = True  # True if the model's input has a batch axis, possibly of size 1

    def of(self, count):
        """Returns the shape for `count` samples. With None, the batch axis has the size None.

        If the model has no batch axis, the sample axis precedes all others. If the model takes one sample and its output has no
        leading axis of size 1, several samples get an additional leading axis too.
        """
        if self.batch is not None:
            sizes: list[int | None] = list(self.dims)
            sizes[self.batch] = None if count is None else sizes[self.batch] * count
            return tuple(sizes[1:] if self.bare and count == 1 else sizes)
        if not self.has_batch:
            return (count, *self.dims)
        if self.dims[:1] == (1,):
            return (count, *self.dims[1:])
        return self.dims if count in (None, 1) else (count, *self.dims)

    @property
    def sample(self):
        """Returns the shape of one sample's values, without the batch axis. It is one flat axis if a sample is not a slice of the
        output."""
        if self.batch is None:
            return self.dims if not self.has_batch else self.dims[1:] if self.dims[:1] == (1,) else (prod(self.dims),)
        return self.dims[1:] if self.batch == 0 and self.dims[0] == 1 else (prod(self.dims),)


@dataclass(frozen=True)
class ModelInput:
    """An input of the ONNX model."""

    name: str
    element: int  # element type, a constant of `onnx.TensorProto`
    shape: tuple[int, ...]  # shape of one sample
    first: int = 0  # index of the input's first value in a flattened sample, which concatenates all inputs

    @property
    def place(self):
        """Returns the slice of the input's values in a flattened sample."""
        return slice(self.first, self.first + prod(self.shape))


@dataclass(frozen=True)
class ModelOutput:
    """An output of the ONNX model."""

    name: str
    shapes: ResultShape | None  # Shapes of the output. None for class names: one name per sample.
    last: str  # operator that the host applies to all values of a sample: "" (none), "softmax" or "log" (LogSoftmax)
    label: bool  # True if the output contains class numbers or class names
    value: str  # name of the ONNX tensor with the numbers: the output itself, or the tensor from which a label is computed
    place: slice  # position of the output's numbers in the results of the network

    @property
    def shape(self):
        """Returns the shape of one sample, without the batch axis."""
        if self.shapes is None:
            return ()
        return () if self.label and prod(self.shapes.sample) != 1 else self.shapes.sample

    def shape_of(self, count):
        """Returns the ONNX shape for `count` samples. With None, a batch axis of any size has the size None."""
        return (count,) if self.shapes is None else self.shapes.of(count)

    def finish(self, results):
        """Selects this output's values from the network's results, (count, size), converts them to binary64, and applies the
        host's operator."""
        values = np.asarray(results, np.float64)[:, self.place]
        return softmax(values, self.last == "log") if self.last else values

    def of(self, results):
        """Computes this output from the network's results, (count, size). Returns ONNX's shape and type: float32, or int64
        classes."""
        return self.shaped(self.finish(results))

    def shaped(self, values):
        """Converts the values from :meth:`finish`, (count, size), to ONNX's shape and type: float32, or int64 classes."""
        values = values.argmax(axis=1) if self.label else values.astype(np.float32)
        return values.reshape(self.shape_of(len(values)))


def softmax(values, logarithm=False):
    """Returns the softmax, or its logarithm, of each row of a binary64 array."""
    with np.errstate(all="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        total = np.exp(values).sum(axis=1, keepdims=True)
        return values - np.log(total) if logarithm else np.exp(values) / total

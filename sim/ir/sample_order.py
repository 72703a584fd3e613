"""The samples and results of a model, and their places in the input tensors and the output tensor of its graph."""

from dataclasses import dataclass, field

import numpy as np
from ml_dtypes import bfloat16

__all__ = ["Feed", "SampleOrder"]


@dataclass(frozen=True, eq=False)
class Feed:
    """An input tensor that the host fills from some values of a sample."""

    tensor: str
    #: Int array. Index into the flattened sample for each (y, x, channel) of the tensor; with a table, for each position (y, x).
    places: np.ndarray
    #: Float array (rows, channels) or None. Each value at `places` is a row number of this table, and the row is stored in place
    #: of the value. Negative numbers count from the end.
    table: np.ndarray | None = None

    def of(self, samples):
        """Returns the tensor's values (count, values) for samples (count, values of a sample)."""
        values = samples[:, self.places]
        return values if self.table is None else self.table[values.astype(np.int64)].reshape(len(samples), -1)


@dataclass(eq=False)
class SampleOrder:
    """The order of a model's values in the tensors of its :class:`sim.ir.graph.Graph`."""

    name: str = ""
    tensors: dict = field(default_factory=dict)  # dict of str to Tensor
    #: Tensors of samples that the host writes before each run. Targets, token mask and factors are not among them.
    inputs: tuple = ()
    #: The results. They are kept in binary32, unless a product is part of them or there are several outputs.
    output: str = ""
    beside: tuple = ()  # names of further outputs, which other stages may read
    #: Int array (height * width * channels,), or None. For each (y, x, channel) of the input tensor, its index in the flattened
    #: ONNX sample. None: the same order.
    input_order: np.ndarray | None = field(default=None, repr=False)
    #: Int array, or None. For each value of the flattened ONNX result, its index in the flattened outputs (y, x, channel), one
    #: after the other. None: the same order.
    output_order: np.ndarray | None = field(default=None, repr=False)
    softmax: bool = False  # True if the model ended with a Softmax that was removed, so that the results are logits
    input_shape: tuple[int, ...] = ()  # shape of one sample in the ONNX model
    preprocess: str | None = None  # entry `preprocess` of the model's metadata
    rounded: str = ""  # clause about weights that were rounded to another format than bfloat16
    #: Sim.fusion.origin.Origin or None. Inputs and outputs of the ONNX model. None if the graph was not read from a file.
    origin: object = field(default=None, repr=False)
    #: Tuple of str. The inputs whose numbers are never negative, such as masks of dropout. They are no part of a sample: in
    #: inference, they are 1.
    masks: tuple = ()
    #: All input tensors, if there are several or if the host looks up rows of tables. Empty: the input is a permuted sample.
    feeds: tuple[Feed, ...] = field(default=(), repr=False)

    @property
    def outputs(self):
        """Returns the names of all output tensors."""
        return self.output, *self.beside

    @property
    def input(self):
        """Returns the name of the first input tensor."""
        return self.inputs[0]

    @property
    def input_names(self):
        """Returns the names of the input tensors."""
        return tuple(feed.tensor for feed in self.feeds) or self.inputs[:1]

    @property
    def input_size(self):
        """Returns the number of values that the core reads for one sample: the values of all input tensors."""
        return sum(int(np.prod(self.tensors[name].shape)) for name in self.input_names)

    @property
    def sample_size(self):
        """Returns the number of values in one sample of the model."""
        return int(np.prod(self.input_shape, dtype=np.int64)) if self.feeds else self.input_size

    @property
    def output_size(self):
        """Returns the number of values in the result for one sample."""
        if self.output_order is not None:
            return len(self.output_order)
        return sum(int(np.prod(self.tensors[name].shape)) for name in self.outputs)

    def fed(self, samples):
        """Returns the values (count, input size) that the core reads for samples (count, sample size) of the model."""
        return np.concatenate([feed.of(samples) for feed in self.feeds], axis=1) if self.feeds else samples

    def arrange_input(self, samples):
        """Arranges samples (batch, input size), in the order of the ONNX model, as the input tensor (batch, height, width,
        channels)."""
        samples = np.asarray(samples)
        ordered = samples if self.input_order is None else samples[:, self.input_order]
        return np.ascontiguousarray(ordered).reshape(-1, *self.tensors[self.input].shape)

    def arrange_inputs(self, samples):
        """Returns {tensor: values (batch, height, width, channels)} of all input tensors, for :meth:`fed` samples."""
        samples = np.asarray(samples)
        ones = {name: np.ones((len(samples), *self.tensors[name].shape), bfloat16) for name in self.masks}
        if not self.feeds:
            return {self.input: self.arrange_input(samples)} | ones
        shapes = [self.tensors[name].shape for name in self.input_names]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = np.split(samples, ends, axis=1)
        return {
            name: np.ascontiguousarray(part).reshape(-1, *shape) for name, part, shape in zip(self.input_names, parts, shapes)
        } | ones

    def arrange_output(self, values):
        """Arranges the output tensors, {name: (batch, height, width, channels)}, as results, float32 (batch, output size), in the
        order of the ONNX model."""
        parts = [np.asarray(values[name]).astype(np.float32, copy=False) for name in self.outputs]
        flat = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        return np.ascontiguousarray(flat if self.output_order is None else flat[:, self.output_order])

    def output_places(self):
        """Yields `(name, numbers of its results, their indices y, x and channel)` of each output tensor."""
        order, first = np.arange(self.output_size) if self.output_order is None else np.asarray(self.output_order), 0
        for name in self.outputs:
            shape = self.tensors[name].shape
            values = np.flatnonzero((order >= first) & (order < first + np.prod(shape)))
            yield name, values, np.unravel_index(order[values] - first, shape)
            first += int(np.prod(shape))

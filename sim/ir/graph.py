"""The compiler's input: tensors, and the stages that compute them.

A stage contains everything between reading operands and writing a result: a sum of convolutions, max pooling, an activation
function, rounding, and a product. Dense layers, pooling alone, residual additions, scales and shifts, concatenation and moving
averages are stages with particular weights, so that the compiler schedules only one kind of object. Tensors are indexed (y, x,
channel). A vector is a tensor of 1 x 1 positions.
"""

from dataclasses import dataclass, field

import numpy as np

from ..functions.functions import NONE, Function

__all__ = ["View", "Tensor", "Term", "Pool", "Stage", "Feed", "Graph", "dense_chain", "span"]

_MINUS_ZERO = 0x8000  # bits of the bfloat16 -0, a structural zero


def span(count, stride, kernel, dilation):
    """Returns the number of source positions, along one axis, from the first to the last position that `count` consecutive
    windows read."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class View:
    """The transpose of a tensor in host memory: loads transpose each tile of n positions and n channels."""

    of: str  # name of the tensor that is transposed
    rows: int = 1  # Number of rows of the tensor that are stored as one row. Zeros follow the last sample row if it is not full.
    #: step, before: If a row has several vectors: the distance between the first positions of two vectors, and the number of
    #: positions of the first vector that are before the row. Vectors with a `step` below n overlap.
    step: int = 0
    before: int = 0


@dataclass(frozen=True)
class Tensor:
    """A tensor: `channels` values at each of `height` x `width` positions, per sample. Values are bfloat16; values of the graph's
    output are binary32. The compiler adds tensors that are a `view` of another tensor."""

    name: str
    channels: int
    height: int = 1
    width: int = 1
    view: View | None = None

    def __post_init__(self):
        if not self.name:  # an empty name would mean that there is no tensor
            raise ValueError("a tensor must have a name")

    @property
    def shape(self):
        """Returns the shape as (height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True, eq=False)
class Term:
    """A convolution, whose products are added to the sums of a stage. Position (y, x) of the sums reads the source positions `(y,
    x) * stride + (ky, kx) * dilation - padding`. Positions outside the source are read as +0.
    """

    source: str  # name of the tensor that is read
    #: Bfloat16 (kernel height, kernel width, channels of the source / groups, channels of the result). Output channels are
    #: divided into `groups` equal parts. Each part reads the corresponding part of the source's channels.
    weights: np.ndarray
    #: stride, dilation, padding: Distances along y and x, in positions. With stride 0, all results read the same position.
    #: Padding is above and to the left; the padding below and to the right follows from the stage's size.
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    #: True if the weights define an operation (an average, a scale, a choice of channels), so that training does not change them.
    fixed: bool = False
    #: Name of a tensor (1 x positions) whose values are the weights, separately for each sample. `weights` then only gives the
    #: shape, with one kernel position and one group. +0 is added to the final sums.
    data: str | None = None
    #: Orientation of `data`. True: each position has the weights from one source channel to all channels of the result. False:
    #: each position has the weights of one channel of the result.
    rows: bool = False
    sparse: bool = False  # True if weights of -0 are structural zeros, so that a tile with only such weights needs no pass

    @property
    def kernel(self):
        return self.weights.shape[:2]

    def stretch(self, size):
        """Returns the distance, along y and along x, between the source positions of adjacent sums. `size` is the (height, width)
        of the sums."""
        return tuple(1 if count == 1 else stride for count, stride in zip(size, self.stride))


@dataclass(frozen=True)
class Pool:
    """Max pooling of sums. Output (y, x) is the maximum over the existing positions `(y, x) * stride + (wy, wx) * dilation -
    padding`; every window has at least one. `size` is the (height, width) of the result."""

    window: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of a network. It computes `output[origin + (y, x)] = round(function(pool(bias + terms)))`, or this value times
    `times`.

    Every output channel is `bias + sum over the terms, over ky, over kx, over c`, added in this order for every size of the
    array.
    """

    name: str
    output: str  # Name of the tensor that is written. Several stages may write different parts of one tensor.
    terms: tuple[Term, ...]  # Terms of the sums, at least one. All have the same output channels.
    size: tuple[int, int] = (1, 1)  # height and width of the sums, before pooling
    #: Float32 (channels,), float32 (height, width, channels) or None. The second form has a bias row for each position of the
    #: sums. Such a stage has no pooling and no product.
    bias: np.ndarray | None = None
    pool: Pool | None = None
    function: Function = NONE  # activation function, applied after pooling
    softmax: bool = False  # apply Softmax over the channels, in place of a function
    #: Name of a tensor by which the result is multiplied. It has the shape of the result, or one channel that multiplies all
    #: channels. Both factors are bfloat16, and the product is rounded again.
    times: str | None = None
    origin: tuple[int, int] = (0, 0)  # position in the output tensor of the result's position (0, 0)
    #: Name of the ONNX tensor, (batch, channels, height, width) or (batch, channels), that this stage completes. It is used for
    #: comparison.
    value: str | None = None
    title: str = ""  # Name, in messages, of the operator from which the stage was made. Empty: the stage's name.
    #: True if the results fill the positions of the output one after the other, although rows of results and rows of the output
    #: have different lengths. Results beyond the last position are not written.
    reflow: bool = False

    @property
    def result_size(self):
        """Returns the (height, width) of the result."""
        return self.pool.size if self.pool else self.size

    @property
    def sums_size(self):
        """Returns the (height, width) of the sums that pooling reads. Windows may not reach the last rows and columns of all
        sums."""
        if not self.pool:
            return self.size
        pool = self.pool
        return tuple(
            min(have, span(count, stride, window, dilation) - padding)
            for have, count, stride, window, dilation, padding in zip(
                self.size, pool.size, pool.stride, pool.window, pool.dilation, pool.padding
            )
        )

    @property
    def channels(self):
        """Returns the number of output channels."""
        return self.terms[0].weights.shape[-1]

    @property
    def has_bias_rows(self):
        """True if the bias differs from position to position."""
        return self.bias is not None and self.bias.ndim == 3


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


@dataclass(frozen=True, eq=False)
class Graph:
    """A network of stages, in topological order."""

    name: str
    tensors: dict[str, Tensor]  # tensors by name: the input, and the output of every stage
    #: input, output: Names of tensors. The output is kept in binary32, unless a product is part of it or there are several
    #: outputs. With `feeds`, the input is the first.
    input: str
    output: str
    stages: tuple[Stage, ...]
    #: Int array (height * width * channels,), or None. For each (y, x, channel) of the input tensor, its index in the flattened
    #: ONNX sample. None: the same order.
    input_order: np.ndarray | None = field(default=None, repr=False)
    #: Int array, or None. For each value of the flattened ONNX result, its index in the flattened outputs (y, x, channel), one
    #: after the other. None: the same order.
    output_order: np.ndarray | None = field(default=None, repr=False)
    softmax: bool = False  # True if the model ended with a Softmax that was removed, so that the results are logits
    input_shape: tuple[int, ...] = ()  # shape of one sample in the ONNX model
    preprocess: str | None = None  # entry `preprocess` of the model's metadata
    #: Sim.fusion.origin.Origin or None. Inputs and outputs of the ONNX model. None if the graph was not read from a file.
    origin: object = field(default=None, repr=False)
    #: All input tensors, if there are several or if the host looks up rows of tables. Empty: the input is a permuted sample.
    feeds: tuple[Feed, ...] = field(default=(), repr=False)
    beside: tuple[str, ...] = ()  # names of further outputs, which other stages may read

    @property
    def outputs(self):
        """Returns the names of all output tensors."""
        return self.output, *self.beside

    @property
    def input_names(self):
        """Returns the names of the input tensors."""
        return tuple(feed.tensor for feed in self.feeds) or (self.input,)

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

    @property
    def is_convolutional(self):
        """Returns True if a stage computes sums at more than one position."""
        return any(stage.size != (1, 1) for stage in self.stages)

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
        if not self.feeds:
            return {self.input: self.arrange_input(samples)}
        samples = np.asarray(samples)
        shapes = [self.tensors[name].shape for name in self.input_names]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = np.split(samples, ends, axis=1)
        return {
            name: np.ascontiguousarray(part).reshape(-1, *shape) for name, part, shape in zip(self.input_names, parts, shapes)
        }

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

    def is_wide(self, stage):
        """Returns True if the results of a stage stay binary32. This holds if the stage writes the only output and no product is
        part of the output."""
        return self.outputs == (stage.output,) and not any(other.times for other in self.stages if other.output == self.output)

    def macs(self, stage):
        """Returns the number of multiplications of a stage for one sample. Padding counts, as is usual. Structural zeros do not
        count."""
        height, width = stage.sums_size
        return height * width * sum(map(_multiplications, stage.terms))


def _multiplications(term):
    return np.count_nonzero(term.weights.view(np.uint16) != _MINUS_ZERO) if term.sparse else term.weights.size


def dense_chain(name, layers):
    """Returns the graph of a chain of dense layers. The type of a layer's weights is bfloat16 (K, N).

    Parameters
    ----------
    layers : sequence of (name, weights bfloat16 (K, N), bias float32 (N,) or None, name of a function without parameters)
    """
    tensors, stages = [Tensor("input", layers[0][1].shape[0])], []
    for title, weights, bias, function in layers:
        term = Term(tensors[-1].name, weights.reshape(1, 1, *weights.shape))
        tensors.append(Tensor(f"{len(tensors)}, {title}", weights.shape[1]))
        stages.append(Stage(title, tensors[-1].name, (term,), bias=bias, function=Function(function)))
    return Graph(name, {tensor.name: tensor for tensor in tensors}, "input", tensors[-1].name, tuple(stages))

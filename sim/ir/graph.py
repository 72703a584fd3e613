"""The compiler's input: tensors, and the stages that compute them.

A stage covers everything between reading operands and writing a result: a sum of convolutions, max pooling, an activation
function, rounding, and a product. Dense layers, pooling alone, residual additions, scales and shifts, concatenation and moving
averages are stages with particular weights, so the compiler schedules one kind of object. Tensors are indexed (y, x, channel); a
vector is a tensor of 1 x 1 positions.
"""

from dataclasses import dataclass, field

import numpy as np

from ..functions.functions import NONE, Function

__all__ = ["Tensor", "Term", "Pool", "Select", "Extra", "Stage", "Graph", "dense_chain", "span"]


def span(count, stride, kernel, dilation):
    """Returns the number of positions from the first to the last position that `count` windows read along one axis."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Tensor:
    """A tensor of `channels` values at each of `height` x `width` positions of a sample, in bfloat16 (the graph's output:
    binary32).

    The compiler adds tensors of its own. `transpose_of` names the tensor that this one is a transpose of: loads transpose each
    tile of n positions and n channels. If the transpose is by overlapping blocks of rows, `block` is
    `(positions from one block to the next, positions of the first block before the row)`. The last `void` positions of a sample
    may be absent, where a smaller sample does not fill the last row: they read as +0.
    """

    name: str
    channels: int
    height: int = 1
    width: int = 1
    transpose_of: str | None = None
    void: int = 0
    block: tuple[int, int] | None = None

    def __post_init__(self):
        if not self.name:  # an empty name means no tensor
            raise ValueError("a tensor must have a name")

    @property
    def shape(self):
        """Shape as (height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True, eq=False)
class Term:
    """A convolution that adds to a stage's sums: position (y, x) reads source positions
    `(y, x) * stride + (ky, kx) * dilation - padding`. Positions outside of the source read as +0.

    Parameters
    ----------
    source : str
        Tensor that is read.
    weights : bfloat16 (kernel height, kernel width, channels of the source / groups, channels of the result)
        Output channels are divided into `groups` equal parts; part g reads the g-th part of the source's channels.
    stride, dilation, padding : (int, int)
        Along y and x. Padding is above and to the left; below and to the right it follows from the stage's size.
    groups : int
    fixed : bool
        The weights define an operation (an average, a scale, a choice of channels), so training does not change them.
    data : str or None
        Tensor (1 x positions) whose values are the weights, separately for each sample. `weights` then gives the shape only: one
        kernel position and one group. +0 is added last.
    rows : bool
        Orientation of `data`. True: each position holds the weights of one source channel, for all channels of the result. False:
        each position holds the weights of one channel of the result.
    sparse : bool
        Weights of -0 are structural zeros, so a tile of such weights alone needs no pass.
    """

    source: str
    weights: np.ndarray
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    fixed: bool = False
    data: str | None = None
    rows: bool = False
    sparse: bool = False

    @property
    def kernel(self):
        return self.weights.shape[:2]

    def stretch(self, size):
        """Returns the distance in source positions, (along y, along x), between neighbours of (height, width) sums."""
        return tuple(1 if count == 1 else stride for count, stride in zip(size, self.stride))


@dataclass(frozen=True)
class Pool:
    """Max pooling of sums: output (y, x) is the maximum over the existing positions
    `(y, x) * stride + (wy, wx) * dilation - padding`. Every window has at least one. `size` is (height, width) of the result."""

    window: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Select:
    """A mask on sums of gradients: for each result of a stage it passes the sum at one position in every `window` of the output.

    Parameters
    ----------
    tensor : str
        Tensor of the sums' shape: the stage's results, which must be above 0 for a sum to pass; or indices of places in windows.
    window : (int, int)
        Height and width of the output window of one sum.
    index : bool
        The tensor has indices. They count y first, then x; 255 means none.
    """

    tensor: str
    window: tuple[int, int] = (1, 1)
    index: bool = False


@dataclass(frozen=True)
class Extra:
    """A second result that a stage writes.

    Parameters
    ----------
    tensor : str
    spread : (int, int)
        Result (y, x) is written to (y, x) * spread, with +0 between.
    index : bool
        Writes, instead of results, the indices of the first largest sums in their windows; 255 where relu gives 0.
    """

    tensor: str
    spread: tuple[int, int] = (1, 1)
    index: bool = False


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage: `output[origin + (y, x)] = round(function(pool(bias + terms)))`, or this value times `times`.

    Every output channel is `bias + sum over the terms, over ky, over kx, over c`, in this order, for every size of the array.

    Parameters
    ----------
    name : str
    output : str
        Tensor that is written. Several stages may write parts of one tensor.
    terms : tuple of Term
        At least one; all have the same output channels.
    size : (int, int)
        Height and width of the sums, before pooling.
    bias : float32 (channels,) or None
    pool : Pool or None
    function : Function
        Applied after pooling.
    softmax : bool
        Softmax over the channels, in place of a function.
    times : str or None
        Tensor of the result's shape. Both factors are bfloat16, and the product is rounded again.
    origin : (int, int)
        Position in the output of the result's position (0, 0).
    value : str or None
        The ONNX value, (batch, channels, height, width) or (batch, channels), that this stage completes, for comparison.
    title : str
        Name in messages of the operator that the stage was made from. Empty: the stage's name.
    select : Select or None
        In a training step, in place of a function: the mask on the sums.
    extras : tuple of Extra
        In a training step: further results.
    reflow : bool
        The results fill the output one after the other, as far as it has places; its rows have another length.
    """

    name: str
    output: str
    terms: tuple[Term, ...]
    size: tuple[int, int] = (1, 1)
    bias: np.ndarray | None = None
    pool: Pool | None = None
    function: Function = NONE
    softmax: bool = False
    times: str | None = None
    origin: tuple[int, int] = (0, 0)
    value: str | None = None
    title: str = ""
    select: Select | None = None
    extras: tuple[Extra, ...] = ()
    reflow: bool = False

    @property
    def result_size(self):
        """Size (height, width) of the result, or of the sums that `select` masks."""
        return self.pool.size if self.pool else self.size

    @property
    def beside(self):
        """Tensor of the results' shape that is read as an operand when results are computed, or None."""
        return self.select.tensor if self.select else self.times

    @property
    def window(self):
        """Positions of the output, along y and x, for each result."""
        return self.select.window if self.select else (1, 1)

    @property
    def sums_size(self):
        """Size (height, width) of the sums that pooling reads; windows may not reach the last rows and columns."""
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
        """Number of output channels."""
        return self.terms[0].weights.shape[-1]

    @property
    def is_uniform(self):
        """True if all output channels read the same inputs: no groups, and no terms with structural zeros."""
        return not any(term.groups > 1 or term.sparse for term in self.terms)


@dataclass(frozen=True, eq=False)
class Graph:
    """A network of stages in a topological order.

    Parameters
    ----------
    name : str
    tensors : dict of str to Tensor
        The input and every stage's output.
    input, output : str
        Names of tensors. The output is kept in binary32, unless a product is part of it.
    stages : tuple of Stage
    input_order : int array (height * width * channels,), or None
        Index into the flattened ONNX sample for each (y, x, channel) of the input tensor. None: identity.
    output_order : int array, or None
        Index into the output tensor, as (y, x, channel), for each value of the flattened ONNX result. None: identity.
    softmax : bool
        The model ended in a Softmax that was removed: the results are logits.
    input_shape : tuple of int
        Shape of one sample in the model.
    preprocess : str or None
        Entry `preprocess` of the model's metadata.
    origin : sim.fusion.origin.Origin or None
        The model's own input and outputs; None if the graph was not read from a file.
    """

    name: str
    tensors: dict[str, Tensor]
    input: str
    output: str
    stages: tuple[Stage, ...]
    input_order: np.ndarray | None = field(default=None, repr=False)
    output_order: np.ndarray | None = field(default=None, repr=False)
    softmax: bool = False
    input_shape: tuple[int, ...] = ()
    preprocess: str | None = None
    origin: object = field(default=None, repr=False)

    @property
    def input_size(self):
        """Number of values in one sample."""
        return int(np.prod(self.tensors[self.input].shape))

    @property
    def output_size(self):
        """Number of values in one result."""
        shape = self.tensors[self.output].shape
        return int(np.prod(shape)) if self.output_order is None else len(self.output_order)

    @property
    def is_convolutional(self):
        """True if a stage has sums at more than one position."""
        return any(stage.size != (1, 1) for stage in self.stages)

    def arrange_input(self, samples):
        """Returns samples (batch, input size) in the model's order as (batch, height, width, channels)."""
        samples = np.asarray(samples)
        ordered = samples if self.input_order is None else samples[:, self.input_order]
        return np.ascontiguousarray(ordered).reshape(-1, *self.tensors[self.input].shape)

    def arrange_output(self, values):
        """Returns values (batch, height, width, channels) as (batch, output size) in the model's order."""
        flat = np.asarray(values).reshape(len(values), -1)
        return np.ascontiguousarray(flat if self.output_order is None else flat[:, self.output_order])

    def is_wide(self, stage):
        """Returns True if a stage's results are kept in binary32: it writes the output, and no product is part of the output."""
        return stage.output == self.output and not any(other.times for other in self.stages if other.output == self.output)

    def macs(self, stage):
        """Returns the number of multiplications of a stage for one sample. Padding counts, as is usual; structural zeros do
        not."""
        height, width = stage.sums_size
        return sum(height * width * term.weights.size for term in stage.terms)


def dense_chain(name, layers):
    """Returns the graph of a chain of dense layers.

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

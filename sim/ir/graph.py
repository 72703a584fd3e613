"""The compiler's input for what is more than a chain of dense layers: tensors, and the stages that make them.

A stage is all that happens between reading operands and writing a result: convolutions that add up in the same sums, their
maximum over windows, a function, rounding, a product. Dense layers, pooling alone, residual additions, scales and
shifts, concatenation and moving averages are stages with particular weights, so that there is one kind of thing to
schedule. Indices of tensors are (y, x, channel); a vector is a tensor of 1 x 1 positions.
"""

from dataclasses import dataclass, field

import numpy as np

from ..functions.functions import NONE, Function

__all__ = ["Tensor", "Term", "Pool", "Select", "Extra", "Stage", "Graph", "dense_chain", "span"]


def span(count, stride, kernel, dilation):
    """Positions from the first to the last that `count` windows read, along one axis."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


@dataclass(frozen=True)
class Tensor:
    """`channels` values at each of `height` x `width` positions of a sample, in bfloat16 (the graph's output: binary32).

    The compiler's own may be `transpose_of`: another tensor, as loads have it that transpose every tile of n positions and n
    channels. Of one that is turned by overlapping blocks of its rows, `block` has `(positions from a block to the next, those
    of the first block before the row)`. And the last `void` positions of a sample may not be there, where those of a smaller
    one do not fill the last row: they are +0.
    """

    name: str
    channels: int
    height: int = 1
    width: int = 1
    transpose_of: str | None = None
    void: int = 0
    block: tuple[int, int] | None = None

    def __post_init__(self):
        if not self.name:  # which stands for no tensor
            raise ValueError("a tensor must have a name")

    @property
    def shape(self):
        """(height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True, eq=False)
class Term:
    """A convolution that adds to a stage's sums: position (y, x) reads source positions `(y, x) * stride + (ky, kx) * dilation -
    padding`. What lies outside of the source is +0.

    Parameters
    ----------
    source : str
        Tensor that is read.
    weights : bfloat16 (kernel height, kernel width, channels of the source / groups, channels of the result)
        Output channels are cut into `groups` equal parts; part g sees the g-th part of the source's channels.
    stride, dilation, padding : (int, int)
        Along y and x; padding above and to the left. Below and to the right there is as much as the stage's size asks for.
    groups : int
    fixed : bool
        Whether the weights are what an operation is made of (an average, a scale, a choice of channels), which training leaves
        as they are.
    data : str or None
        Tensor (1 x positions) whose values are the weights, each sample's own; `weights` then only has their shape, of one kernel
        position and one group. +0 is added last.
    rows : bool
        Whether each position of `data` has the weights of a source channel, for all channels of the result. Else it has those of
        a channel of the result.
    sparse : bool
        Whether weights of -0 are none at all, so that a tile of them alone needs no pass.
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
        """(along y, along x): how many positions of the source lie from one of these (height, width) sums to the next."""
        return tuple(1 if count == 1 else stride for count, stride in zip(size, self.stride))


@dataclass(frozen=True)
class Pool:
    """Maximum over windows of sums: output (y, x) takes those at `(y, x) * stride + (wy, wx) * dilation - padding` that exist;
    every window has at least one. `size` is (height, width) of the result."""

    window: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Select:
    """What keeps sums of gradients, at each result of a stage: one in every `window` of the output.

    Parameters
    ----------
    tensor : str
        Of the sums' shape: the stage's results, which have to be above 0; or numbers of places in windows.
    window : (int, int)
        Height and width of what a sum belongs to in the output.
    index : bool
        Whether the tensor has numbers. They count y first, then x; 255 stands for none.
    """

    tensor: str
    window: tuple[int, int] = (1, 1)
    index: bool = False


@dataclass(frozen=True)
class Extra:
    """What a stage writes beside its results.

    Parameters
    ----------
    tensor : str
    spread : (int, int)
        Result (y, x) goes to (y, x) * spread; +0 is between.
    index : bool
        Instead of results, the numbers of the first largest sums in their windows, 255 where relu gives 0.
    """

    tensor: str
    spread: tuple[int, int] = (1, 1)
    index: bool = False


@dataclass(frozen=True, eq=False)
class Stage:
    """`output[origin + (y, x)] = round(function(pool(bias + terms)))`, or that times `times`.

    Every output channel is `bias + sum over the terms, over ky, over kx, over c`, in this order, whatever the size of
    the array.

    Parameters
    ----------
    name : str
    output : str
        Tensor that is written. Several stages may write parts of the same one.
    terms : tuple of Term
        At least one; all have the same output channels.
    size : (int, int)
        Height and width of the sums, before pooling.
    bias : float32 (channels,) or None
    pool : Pool or None
    function : Function
        Applied after pooling.
    softmax : bool
        Over the channels, in place of a function.
    times : str or None
        Tensor of the result's shape: both factors are bfloat16, and the product is rounded again.
    origin : (int, int)
        Where in the output the result's position (0, 0) goes.
    value : str or None
        The ONNX value, (batch, channels, height, width) or (batch, channels), that this stage completes, for comparison.
    title : str
        How a message names the operator that it was made of; empty: by the stage's name.
    select : Select or None
        In a training step, in place of a function: what keeps the sums.
    extras : tuple of Extra
        In a training step: what else is written.
    reflow : bool
        Whether the results, one after the other as far as there are places, fill the output, whose rows have another length.
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
        """(height, width) of what is written, or of what selects."""
        return self.pool.size if self.pool else self.size

    @property
    def beside(self):
        """Tensor of the results' shape that is read where they are made, or None."""
        return self.select.tensor if self.select else self.times

    @property
    def window(self):
        """Positions of the output, along y and x, for each result."""
        return self.select.window if self.select else (1, 1)

    @property
    def sums_size(self):
        """(height, width) of the sums that are needed: windows may leave some at the end out."""
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
        """Output channels."""
        return self.terms[0].weights.shape[-1]

    @property
    def is_uniform(self):
        """Whether all output channels read the same: neither groups, nor terms with weights left out."""
        return not any(term.groups > 1 or term.sparse for term in self.terms)


@dataclass(frozen=True, eq=False)
class Graph:
    """A network of stages, in an order in which they can run.

    Parameters
    ----------
    name : str
    tensors : dict of str to Tensor
        Of the input, of every stage's output.
    input, output : str
        Names of tensors. The output is kept in binary32, unless a product is part of it.
    stages : tuple of Stage
    input_order : int array (height * width * channels,), or None
        The value of the ONNX sample, flattened, at each (y, x, channel) of the input tensor. None: in order.
    output_order : int array, or None
        For each value of the ONNX result, flattened: which of the output tensor's, as (y, x, channel). None: in order.
    softmax : bool
        Whether the model ended in Softmax, which has been left out: the results are logits.
    input_shape : tuple of int
        Shape of one sample, as the model had it.
    preprocess : str or None
        What the model's metadata says under `preprocess`.
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
        """Values in one sample."""
        return int(np.prod(self.tensors[self.input].shape))

    @property
    def output_size(self):
        """Values in one result."""
        shape = self.tensors[self.output].shape
        return int(np.prod(shape)) if self.output_order is None else len(self.output_order)

    @property
    def is_convolutional(self):
        """Whether it has sums at more than one position."""
        return any(stage.size != (1, 1) for stage in self.stages)

    def arrange_input(self, samples):
        """(batch, height, width, channels) from samples (batch, input size) in the model's order."""
        samples = np.asarray(samples)
        ordered = samples if self.input_order is None else samples[:, self.input_order]
        return np.ascontiguousarray(ordered).reshape(-1, *self.tensors[self.input].shape)

    def arrange_output(self, values):
        """(batch, output size) in the model's order from (batch, height, width, channels)."""
        flat = np.asarray(values).reshape(len(values), -1)
        return np.ascontiguousarray(flat if self.output_order is None else flat[:, self.output_order])

    def is_wide(self, stage):
        """Whether what a stage writes is kept in binary32: the output, if no product is part of it."""
        return stage.output == self.output and not any(other.times for other in self.stages if other.output == self.output)

    def macs(self, stage):
        """Multiplications that a stage needs for one sample; padding counts, as it does elsewhere, structural zeros do not."""
        height, width = stage.sums_size
        return sum(height * width * term.weights.size for term in stage.terms)


def dense_chain(name, layers):
    """The graph of dense layers one after the other.

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

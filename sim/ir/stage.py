"""Stages and their parts: the records of which a graph consists."""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.normalization import upper_bits

from ..functions.functions import NONE

__all__ = ["NOWHERE", "ChannelNorm", "Norm", "Pool", "Select", "Stage", "Tensor", "Term", "by", "reads", "span"]

#: Index in a pooling window that stands for none: with ReLU, no value of the window is above 0.
NOWHERE = 255


def span(count, stride, kernel, dilation):
    """Returns the number of source positions, along one axis, from the first to the last position that `count` consecutive
    windows read."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


def by(sizes):
    """Returns sizes as text, such as 3x3."""
    return "x".join(map(str, sizes))


def _given(record, **usual):
    """Returns the names and values of the fields that differ from `usual`."""
    fields = [(name, getattr(record, name)) for name, value in usual.items() if getattr(record, name) != value]
    return [f"{name} {by(value) if isinstance(value, tuple) else value}" for name, value in fields]


@dataclass(frozen=True)
class Select:
    """A mask on sums of gradients. For each window of the output, the sum is written to one position or to
    none.
    """

    #: Name of the tensor that decides. It has the shape of the sums. It contains the forward results of the stage, and a sum
    #: passes if its result is above 0. With `index`, it contains indices of positions in windows.
    tensor: str
    window: tuple[int, int] = (1, 1)  # height and width of the output window for one sum
    #: True if the tensor contains indices. An index counts the positions of a window row by row; 255 means no position.
    index: bool = False


@dataclass(frozen=True)
class Tensor:
    """A tensor of `height` x `width` x `channels` numbers, bfloat16 or binary32."""

    name: str
    channels: int
    height: int = 1
    width: int = 1
    samples: bool = True  # Each sample has its own numbers. False: a parameter, its gradient, its optimizer state, or a constant.
    #: True: binary32. False: bfloat16. A term that reads a binary32 tensor uses only the upper 16 bits of each number (truncation
    #: to bfloat16).
    wide: bool = False

    def __post_init__(self):
        if not self.name:  # an empty name would mean that there is no tensor
            raise ValueError("a tensor must have a name")

    @property
    def shape(self):
        """Shape as (height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class Term:
    """A convolution, or another product of two tensors, that adds to a stage's sums. Position (y, x) of the sums reads the source
    positions `(y, x) * stride + (ky, kx) * dilation - padding`. Positions outside the source are read as +0.
    """

    source: str
    #: Name of the tensor of weights. Its height counts kernel positions, its width counts channels of the source, and its
    #: channels are the channels of the result. A 1 x 1 kernel may be a tensor with samples: each sample has its own weights.
    weights: str
    kernel: tuple[int, int] = (1, 1)
    #: stride, dilation, padding: Distances along y and x, in positions. With stride 0, all results read the same position.
    #: Padding is above and to the left; the padding below and to the right follows from the stage's size.
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    #: Output channels are divided into `groups` equal parts. Each part reads the corresponding part of the source's channels.
    groups: int = 1
    #: The source is read with `apart - 1` positions of +0 between its positions, for the gradient of a stride.
    apart: tuple[int, int] = (1, 1)
    #: Swaps the source's and the result's channels of the weights and mirrors the kernel, for the gradient of the source.
    swapped: bool = False
    #: Swaps positions and (kernel position, channel) of the source, for the gradient of weights. `weights` has a vector for each
    #: position of the sum.
    transposed: bool = False
    #: The source is loaded transposed, in networks alone. With groups, a line of vectors has `lanes` positions of one channel,
    #: and the windows are windows of such lines. Without groups, each vector of the source had `lanes` positions, and has
    #: channels again.
    lanes: int = 0
    #: Tuple of (int, int). The first position in the line, and the number of the weights, of each vector of a line. There are
    #: kernel positions for each number of weights.
    blocks: tuple = ()
    #: Tuple of :class:`sim.ir.strided_copies.StridedCopy`. Values of the source are copied to these places of the sums. The
    #: weights are the number 1, and the kernel and its distances have no meaning.
    copies: tuple = ()
    #: The weights define an operation (an average, a scale, a choice of channels), so that training does not change them.
    fixed: bool = field(default=False, compare=False)
    #: Weights of -0 are structural zeros, so that a tile with only such weights needs no pass.
    sparse: bool = field(default=False, compare=False)

    def __str__(self):
        given = _given(self, kernel=(1, 1), stride=(1, 1), dilation=(1, 1), padding=(0, 0), apart=(1, 1), groups=1, lanes=0)
        given += [f"blocks {' '.join(map(by, self.blocks))}"] if self.blocks else []
        marks = (mark if flag else "" for mark, flag in (("^T", self.transposed), ("^T", self.swapped)))
        if self.copies:
            return f"{self.source} by strides ({', '.join(map(str, self.copies))})"
        left, right = (name + mark for name, mark in zip((self.source, self.weights), marks))
        return f"{left} * {right}" + (f" ({', '.join(given)})" if given else "")


def reads(term, source, size):
    """Returns how many of the `size` positions read a number of the source, not padding, at each kernel position: an array of
    the kernel's height and width."""
    axes = []
    for axis, count in enumerate(size):
        steps = (getattr(term, name)[axis] for name in ("kernel", "stride", "dilation", "padding", "apart"))
        kernel, stride, dilation, padding, apart = steps
        place = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - padding
        axes.append(((place >= 0) & (place <= (source.shape[axis] - 1) * apart) & (place % apart == 0)).sum(axis=0))
    return np.outer(*axes)


@dataclass(frozen=True)
class Norm:
    """A normalization over the channels: (x - mean x) / sqrt(mean square of the numerator + epsilon). The numerator is x - mean
    x if `centred`. Otherwise (RMSNorm) it is x."""

    epsilon: float
    centred: bool = True
    #: Only of a stage with NORMALIZE: each result is the inverse root of a row, divided by this number, in place of a numerator
    #: times the root. 0: the normalized numbers.
    root_by: float = 0

    def __str__(self):
        root = f", root / {self.root_by:g}" * bool(self.root_by)
        return f"{'norm' if self.centred else 'rms norm'} {self.epsilon:g}{root}"

    def fields(self, channels):
        """Returns the fields of NORMALIZE, by name."""
        factor, epsilon = upper_bits(channels**0.5 / (self.root_by or 1)), upper_bits(channels * self.epsilon)
        return {"centred": int(self.centred), "root": int(self.root_by > 0), "factor": factor, "epsilon": epsilon}


@dataclass(frozen=True)
class ChannelNorm:
    """A normalization of each channel by the statistics of a batch: (x - mean) / sqrt(variance + epsilon). Inference has running
    averages in their place."""

    epsilon: float
    count: int  # samples of a batch, on all cores
    mean: str  # parameter, the running average of minus the mean
    variance: str  # parameter, the running average of the variance
    momentum: float = 0.1  # share of a batch in the running averages
    unbiased: bool = True  # the running variance is the sum of squares / (values - 1)

    def __str__(self):
        return f"batch norm {self.epsilon:g} of {self.count}, {self.mean}, {self.variance}, {self.momentum:g} {self.unbiased}"


@dataclass(frozen=True)
class Pool:
    """Max pooling of sums. Output (y, x) is the maximum over the existing positions `(y, x) * stride + (wy, wx) * dilation -
    padding`; every window has at least one. `size` is the (height, width) of the result."""

    window: tuple[int, int]
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def is_apart(self, size):
        """Returns True if the windows cover the first of `size` positions once each, and no others."""
        steps = (have if count == 1 else by for count, by, have in zip(self.size, self.stride, self.window))
        plain = tuple(steps) == self.window and self.padding == (0, 0) and self.dilation == (1, 1)
        return plain and all(count * window <= have for count, window, have in zip(self.size, self.window, size))


@dataclass(frozen=True)
class Stage:
    """A stage: `output = round(select(function(pool(start + terms))) * times)`. A wide output is not rounded."""

    output: str
    terms: tuple[Term, ...] = ()
    size: tuple[int, int] = (1, 1)  # height and width of the sums
    #: Tensor of initial sums: one row for all positions, or one row per position. Channels beyond the output's do not count.
    start: str | None = None
    pool: Pool | None = None
    #: True: the output is the place of the first maximum in each window of `pool`, as uint8. With relu, the output is NOWHERE if
    #: the maximum is not above 0.
    index: bool = False
    function: object = NONE  # function or any function by table
    softmax: bool | Norm = False  # softmax over the channels, or a normalization by NORMALIZE, in place of a function
    #: Normalization of the only term's source. Only in networks: a step has the stages of :mod:`sim.autodiff.norms` instead.
    norm: Norm | ChannelNorm | None = None
    select: Select | None = None
    times: str | None = None  # tensor that multiplies the rounded result; a tensor of one channel multiplies all channels
    name: str = ""  # Name of the sums in reports. Default: the output.
    #: Position in the output of the result's position (0, 0), if the result is a part of the output.
    origin: tuple[int, int] = (0, 0)
    #: An operation on `start` between cores, in place of sums. `"all_reduce"`: the sum over the cores, from core 0 on.
    #: `"reduce_scatter"`: each core gets the sum of its segment of the channels. `"all_reduce_segments"`: each core gets the sums
    #: of all segments. `"all_gather"`: each core gets the upper halves of all segments.
    ring: str | None = None
    #: Name of the ONNX tensor, (batch, channels, height, width) or (batch, channels), that this stage completes. It is used for
    #: comparison.
    value: str | None = field(default=None, compare=False)
    title: str = field(default="", compare=False)  # operator from which the stage was made, in messages

    @property
    def is_repeated(self):
        """True if the stage has sums of one position, and writes its result to several positions."""
        return self.pool is not None and self.size == (1, 1) != self.pool.size

    @property
    def sums(self):
        """Key that is equal for twins."""
        return self.start, self.terms, self.size

    @property
    def operands(self):
        """Returns the names of the tensors that the stage reads, in order."""
        names = [name for term in self.terms for name in (term.source, term.weights)]
        return [*names, *filter(None, (self.start, self.times, self.select and self.select.tensor))]

    @property
    def sums_size(self):
        """Height and width of the sums that pooling reads. Windows may not reach the last rows and columns of all sums."""
        if not self.pool:
            return self.size
        axes = zip(self.size, *(getattr(self.pool, name) for name in ("size", "stride", "window", "dilation", "padding")))
        return tuple(min(have, span(*window) - padding) for have, *window, padding in axes)

    @property
    def result_size(self):
        """Height and width of the output."""
        size, window = self.pool.size if self.pool else self.size, self.select.window if self.select else (1, 1)
        return tuple(count * by for count, by in zip(size, window))

    def __str__(self):
        parts = [" + ".join(map(str, (f"[{self.start}]",) * bool(self.start) + self.terms))]
        if pool := self.pool:
            given = _given(pool, stride=pool.window, dilation=(1, 1), padding=(0, 0))
            given = [f"of {by(self.size)}", *given] if given else []
            parts.append(f"pool {by(pool.window)}" + (f" ({', '.join(given)})" if given else ""))
        parts += ["index"] * self.index + [str(self.function)] * (self.function != NONE)
        parts += ["softmax" if self.softmax is True else f"{self.softmax} by rows"] * bool(self.softmax)
        if self.norm:
            parts.append(str(self.norm))
        if self.times:
            parts.append(f"times {self.times}")
        if self.select:
            parts.append(f"{'place' if self.select.index else 'where'} {self.select.tensor}")
        return " | ".join(parts + ([self.ring] if self.ring else []))

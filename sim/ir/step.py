"""A training step as one graph of stages: forward pass, gradients and parameter updates.

Three conventions define the graph:

- Axes. An axis that both operands of a term have, but not the result, is summed, in the order (sample, y, x) or (ky, kx,
  channel).
- Twins. Stages with equal start, terms and size have equal sums, so the sums are computed only once.
- Diagonals. A 1 x 1 term with as many groups as channels multiplies its source by one number, or by one number per channel.

A network is a step graph without gradients and updates. :func:`sim.autodiff.make_step.make_step` adds both.
"""

import zlib
from copy import copy
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ..functions.functions import NONE
from .graph import Pool

__all__ = ["Select", "StepTensor", "StepTerm", "StepStage", "Norm", "StepParameter", "StepGraph"]


def _by(sizes):
    return "x".join(map(str, sizes))


def _given(record, **usual):
    """Returns the names and values of the fields that differ from `usual`."""
    fields = [(name, getattr(record, name)) for name, value in usual.items() if getattr(record, name) != value]
    return [f"{name} {_by(value) if isinstance(value, tuple) else value}" for name, value in fields]


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
class StepTensor:
    """A tensor of `height` x `width` x `channels` numbers, bfloat16 or binary32."""

    name: str
    channels: int
    height: int = 1
    width: int = 1
    samples: bool = True  # Each sample has its own numbers. False: a parameter, its gradient, its optimizer state, or a constant.
    #: True: binary32. False: bfloat16. A term that reads a binary32 tensor uses only the upper 16 bits of each number (truncation
    #: to bfloat16).
    wide: bool = False

    @property
    def shape(self):
        """Shape as (height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class StepTerm:
    """A product of two tensors that adds to a stage's sums. `kernel` to `groups` are as in :class:`sim.ir.graph.Term`."""

    source: str
    #: Name of the tensor of weights. Its height counts kernel positions, its width counts channels of the source, and its
    #: channels are the channels of the result. A 1 x 1 kernel may be a tensor with samples: each sample has its own weights.
    weights: str
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
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

    def __str__(self):
        given = _given(self, kernel=(1, 1), stride=(1, 1), dilation=(1, 1), padding=(0, 0), apart=(1, 1), groups=1, lanes=0)
        given += [f"blocks {' '.join(map(_by, self.blocks))}"] if self.blocks else []
        marks = (mark if flag else "" for mark, flag in (("^T", self.transposed), ("^T", self.swapped)))
        left, right = (name + mark for name, mark in zip((self.source, self.weights), marks))
        return f"{left} * {right}" + (f" ({', '.join(given)})" if given else "")


@dataclass(frozen=True)
class Norm:
    """A normalization over the channels: (x - mean x) / sqrt(mean square of the numerator + epsilon). The numerator is x - mean
    x if `centred`. Otherwise (RMSNorm) it is x."""

    epsilon: float
    centred: bool = True


@dataclass(frozen=True)
class StepStage:
    """A stage: `output = round(select(function(pool(start + terms))) * times)`. A wide output is not rounded."""

    output: str
    terms: tuple[StepTerm, ...] = ()
    size: tuple[int, int] = (1, 1)  # height and width of the sums
    start: str | None = None  # tensor of initial sums: one row for all positions, or one row per position
    pool: Pool | None = None
    #: True: the output is the place of the first maximum in each window of `pool`, as uint8. With relu, the output is NOWHERE if
    #: the maximum is not above 0.
    index: bool = False
    function: object = NONE  # function or any function by table
    softmax: bool = False  # softmax over the channels, in place of a function
    #: Normalization of the only term's source. Only in networks: a step has the stages of :mod:`sim.autodiff.norms` instead.
    norm: Norm | None = None
    select: Select | None = None
    times: str | None = None  # tensor that multiplies the rounded result; a tensor of one channel multiplies all channels
    name: str = ""  # Name of the sums in reports. Default: the output.
    #: Position in the output of the result's position (0, 0), if the result is a part of the output.
    origin: tuple[int, int] = (0, 0)
    #: An operation on `start` between cores, in place of sums. `"all_reduce"`: the sum over the cores, from core 0 on.
    #: `"reduce_scatter"`: each core gets the sum of its segment of the channels. `"all_reduce_segments"`: each core gets the sums
    #: of all segments. `"all_gather"`: each core gets the upper halves of all segments.
    ring: str | None = None

    @property
    def sums(self):
        """Key that is equal for twins."""
        return self.start, self.terms, self.size

    @property
    def result_size(self):
        """Height and width of the output."""
        size, window = self.pool.size if self.pool else self.size, self.select.window if self.select else (1, 1)
        return tuple(count * by for count, by in zip(size, window))

    def __str__(self):
        parts = [" + ".join(map(str, (f"[{self.start}]",) * bool(self.start) + self.terms))]
        if pool := self.pool:
            given = _given(pool, stride=pool.window, dilation=(1, 1), padding=(0, 0))
            given = [f"of {_by(self.size)}", *given] if given else []
            parts.append(f"pool {_by(pool.window)}" + (f" ({', '.join(given)})" if given else ""))
        parts += ["index"] * self.index + [str(self.function)] * (self.function != NONE) + ["softmax"] * self.softmax
        if self.norm:
            parts.append(f"{'norm' if self.norm.centred else 'rms norm'} {self.norm.epsilon:g}")
        if self.times:
            parts.append(f"times {self.times}")
        if self.select:
            parts.append(f"{'place' if self.select.index else 'where'} {self.select.tensor}")
        return " | ".join(parts + ([self.ring] if self.ring else []))


@dataclass(frozen=True, eq=False)
class StepParameter:
    """A trained tensor."""

    initial: np.ndarray = field(repr=False)  # float32 (height, width, channels)
    decays: bool = True  # Weight decay applies. This is True for weights and False for biases.


@dataclass(eq=False)
class StepGraph:
    """A training step, or a network. Arrays have the shapes of their tensors, (height, width, channels)."""

    tensors: dict = field(default_factory=dict)  # dict of str to StepTensor
    stages: list = field(default_factory=list)  # List of StepStage. In a topological order.
    constants: dict = field(default_factory=dict)  # Dict of str to array. bfloat16; float32 if the tensor is wide.
    parameters: dict = field(default_factory=dict)  # dict of str to StepParameter
    #: Tuple of str. Tensors of samples that the host writes before each step. Targets, token mask and factors are not among them.
    inputs: tuple = ()
    masks: tuple = ()  # Tuple of str. The inputs whose numbers are never negative, such as masks of dropout.
    output: str = ""  # the logits
    beside: tuple = ()  # Tuple of str. Further results of a network, which the host reads too.
    #: targets, counted: Tensors that the host writes. `targets` has the probability of each class. `counted` has one channel: the
    #: factor of the loss of each position.
    targets: str | None = None
    counted: str | None = None
    #: Dict of str to str. Single numbers that the host writes before each step: {name in `optimizer.factors`: tensor}.
    factors: dict = field(default_factory=dict)
    #: Dict of str to str. {input or parameter: its gradient}. Gradients of parameters are wide, and sums over all samples of all
    #: cores.
    gradients: dict = field(default_factory=dict)
    sums_gradients: dict = field(default_factory=dict)  # Dict of str to str. {output of a stage: gradient of its sums}.
    #: Dict of str to str. {parameter: wide tensor that is kept from step to step}. On a ring it may be a core's own share.
    masters: dict = field(default_factory=dict)
    #: Dict of str to dict of str to str. {parameter: {optimizer slot: tensor that is kept}}.
    slots: dict = field(default_factory=dict)
    #: Dict of str to str. {tensor that is kept: the tensor that it becomes at the end of a step}.
    state: dict = field(default_factory=dict)

    @property
    def outputs(self):
        """Returns the names of all results."""
        return self.output, *self.beside

    def copied(self):
        """Returns a copy of the network. Adding stages to the copy does not change this network."""
        return StepGraph(**{one.name: copy(getattr(self, one.name)) for one in fields(self)})

    def free_name(self, name):
        """Returns `name`. If a tensor already has this name, apostrophes are appended."""
        while name in self.tensors:
            name += "'"
        return name

    def add_tensor(self, name, shape, samples=True, wide=False):
        """Adds a tensor that no stage writes. Returns the name of the tensor."""
        name, (height, width, channels) = self.free_name(name), shape
        self.tensors[name] = StepTensor(name, channels, height, width, samples, wide)
        return name

    def add_input(self, name, shape, is_mask=False):
        """Adds a tensor of samples. Returns the name of the tensor."""
        name = self.add_tensor(name, shape)
        self.inputs += (name,)
        self.masks += (name,) if is_mask else ()
        return name

    def add_constant(self, name, values):
        """Adds a constant, bfloat16 or float32. Returns the name of the constant."""
        name = self.add_tensor(name, values.shape, samples=False, wide=values.dtype == np.float32)
        self.constants[name] = values
        return name

    def add_parameter(self, name, initial, decays=True):
        """Adds a trained tensor. Returns the name of the tensor."""
        name = self.add_tensor(name, initial.shape, samples=False, wide=True)
        self.parameters[name] = StepParameter(np.asarray(initial, np.float32), decays)
        return name

    def add_stage(self, stage, channels, samples=True, wide=False):
        """Adds a stage and its output. Returns the name of the output. It differs from `stage.output` if a tensor already has
        that name."""
        name = self.add_tensor(stage.output, (*stage.result_size, channels), samples, wide)
        self.stages.append(stage if name == stage.output else replace(stage, output=name))
        return name

    def is_diagonal(self, term, shape):
        """Returns True if a term only multiplies each channel of its source by a number. `shape` is the (height, width,
        channels) of the sums. Returns False for one channel, because an ordinary 1 x 1 convolution has the same sums."""
        weights = self.tensors[term.weights]
        alike = self.tensors[term.source].shape == tuple(shape) and term.groups == shape[-1] > 1
        plain = term.kernel == term.stride == (1, 1) and term.padding == (0, 0) and not term.transposed
        return alike and plain and not weights.samples and weights.shape[:2] == (1, 1)

    def is_shared(self, parameter):
        """Returns True if each core of a ring keeps only a share of a parameter and of its slots."""
        return self.masters[parameter] != parameter

    def __str__(self):
        """Lists stages, kept tensors, inputs and constants as text. `s` marks results of samples, `w` marks binary32. A constant
        is shown as its shape and a checksum of its bits."""
        lines = []
        for stage in self.stages:
            tensor = self.tensors[stage.output]
            kind = ("s" if tensor.samples else "-") + ("w" if tensor.wide else "-")
            is_part = stage.result_size != tensor.shape[:2]
            part = f" | {_by(stage.result_size)} at {_by(stage.origin)}" if is_part else ""
            lines.append(f"{kind} {stage.output} {_by(tensor.shape)} = {stage}{part}")
        lines += [f"{name} <- {after}" for name, after in self.state.items()]
        lines += [f"input {name} {_by(self.tensors[name].shape)}" for name in self.inputs]
        for name, values in self.constants.items():
            lines.append(f"constant {name} {_by(values.shape)}#{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}")
        return "\n".join(lines)

"""The intermediate form: tensors, and the stages that compute them, of a network or of a training step.

A stage contains everything between reading operands and writing a result: a sum of convolutions, max pooling, an activation
function, rounding, and a product. Dense layers, pooling alone, residual additions, scales and shifts, concatenation and moving
averages are stages with particular weights, so that the compiler schedules only one kind of object. Tensors are indexed (y, x,
channel). A vector is a tensor of 1 x 1 positions. Weights and biases are tensors, too: constants, parameters or results.

Three conventions define a graph:

- Axes. An axis that both operands of a term have, but not the result, is summed, in the order (sample, y, x) or (ky, kx,
  channel).
- Twins. Stages with equal start, terms and size have equal sums, so the sums are computed only once.
- Diagonals. A 1 x 1 term with as many groups as channels multiplies its source by one number, or by one number per channel.

The reader of ONNX files makes a network. :func:`sim.autodiff.trainable_parameters.with_parameters` makes weights its
parameters, and :func:`sim.autodiff.make_step.make_step` adds gradients and updates. :class:`sim.ir.sample_order.SampleOrder` is
the host's side.
"""

import zlib
from copy import copy
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ..functions.functions import Function
from .losses import Huber, JointLoss, Loss
from .sample_order import SampleOrder
from .stage import Stage, Tensor, Term, by, reads

__all__ = ["Graph", "Parameter", "dense_chain"]

_MINUS_ZERO = 0x8000  # bits of the bfloat16 -0, a structural zero


@dataclass(frozen=True, eq=False)
class Parameter:
    """A trained tensor."""

    initial: np.ndarray = field(repr=False)  # float32 (height, width, channels)
    decays: bool = True  # Weight decay applies. This is True for weights and False for biases.
    is_average: bool = False  # a running average of statistics, which an optimizer does not change
    #: Factor from a weight of the model's file to the value, such as attention's. An optimizer updates the weight of the file.
    scale: float = 1.0


@dataclass(eq=False)
class Graph(SampleOrder):
    """A network, or a training step. Arrays have the shapes of their tensors, (height, width, channels)."""

    #: Sequence of Stage, in a topological order. Several stages may write different parts of one tensor.
    stages: list = field(default_factory=list)
    constants: dict = field(default_factory=dict)  # Dict of str to array. bfloat16; float32 if the tensor is wide.
    parameters: dict = field(default_factory=dict)  # dict of str to Parameter
    #: Dict of str to str. {parameter: constant (1, channels, channels)}: vectors with several copies of a value. The constant is
    #: 1 for two copies, so that its product with a gradient is the gradient of all copies.
    ties: dict = field(default_factory=dict)
    loss: Loss | Huber | JointLoss = Loss.CROSS_ENTROPY
    normalize: bool = False  # training computes norms by NORMALIZE, with other bits than products
    is_counted: bool = False  # the host writes a factor for the loss of each position: 1, or 0 for padding
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

    # Reading

    @property
    def sampled(self):
        """Returns the names of the tensors of samples: inputs and results."""
        return tuple(name for name, one in self.tensors.items() if one.samples)

    def channels(self, stage):
        """Returns the number of output channels of a stage."""
        return self.tensors[stage.output].channels

    def kernel(self, term):
        """Returns the constant weights of a term, (kernel height, kernel width, channels of the source / groups, channels of the
        result). Returns None if they are no constants."""
        weights = self.constants.get(term.weights)
        return None if weights is None else weights.reshape(*term.kernel, *weights.shape[1:])

    def is_part(self, stage):
        """Returns True if a stage writes only some positions of its output."""
        return stage.result_size != self.tensors[stage.output].shape[:2]

    def has_bias_rows(self, stage):
        """Returns True if the initial sums of a stage differ from position to position."""
        return stage.start is not None and self.tensors[stage.start].shape[:2] != (1, 1)

    def is_product(self, term):
        """Returns True if each sample has its own weights."""
        return self.tensors[term.weights].samples

    def reached(self, names):
        """Returns the names of the tensors that depend on these tensors, and of these tensors."""
        found = {*names}
        for stage in self.stages:
            if not found.isdisjoint(stage.operands):
                found.add(stage.output)
        return found

    @property
    def differentiated(self):
        """Returns the numbers of the stages that depend on a parameter."""
        found = self.reached(self.parameters)
        return tuple(number for number, stage in enumerate(self.stages) if not found.isdisjoint(stage.operands))

    @property
    def is_convolutional(self):
        """Returns True if a stage computes sums at more than one position."""
        return any(stage.size != (1, 1) for stage in self.stages)

    @property
    def macs(self):
        """Returns the number of multiplications of each stage for a sample, without padding and structural zeros, which programs
        leave out. Stages with the same sums compute them once, in the first of them."""
        first = {stage.sums: stage for stage in reversed(self.stages)}
        return [
            int(sum(self._multiplications(stage, term) for term in stage.terms)) if first[stage.sums] is stage else 0
            for stage in self.stages
        ]

    def _multiplications(self, stage, term):
        if term.copies:
            return 0
        _, inputs, outputs = self.tensors[term.weights].shape
        each = inputs * outputs
        if term.sparse:
            each = (self.kernel(term).view(np.uint16) != _MINUS_ZERO).sum(axis=(2, 3))
        return (reads(term, self.tensors[term.source], stage.sums_size) * each).sum()

    # Writing

    def term(self, source, name, weights, **fields):
        """Returns a :class:`.Term` with constant bfloat16 weights (kernel height, kernel width, channels of the source / groups,
        channels of the result)."""
        constant = self.constant(name, weights.reshape(-1, *weights.shape[2:]))
        return Term(source, constant, weights.shape[:2], **fields)

    def copied(self):
        """Returns a copy of the network. Adding stages to the copy does not change this network."""
        return Graph(**{one.name: copy(getattr(self, one.name)) for one in fields(self)})

    def free_name(self, name):
        """Returns `name`. If a tensor already has this name, apostrophes are appended."""
        while name in self.tensors:
            name += "'"
        return name

    def constant(self, name, values):
        """Returns the name of a constant. If the graph has no constant `name` with these bits, it is added."""
        while name in self.tensors:
            if name in self.constants and _are_equal(self.constants[name], values):
                return name
            name += "'"
        return self.add_constant(name, values)

    def add_tensor(self, name, shape, samples=True, wide=False):
        """Adds a tensor that no stage writes. Returns the name of the tensor."""
        name, (height, width, channels) = self.free_name(name), shape
        self.tensors[name] = Tensor(name, channels, height, width, samples, wide)
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
        self.parameters[name] = Parameter(np.asarray(initial, np.float32), decays)
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

    def summed(self, term):
        """Returns the tensor without samples whose positions or channels a term sums, for the norm of all gradients, or None."""
        if term.transposed and not self.tensors[term.weights].samples:
            return term.weights
        return term.source if term.swapped and not self.tensors[term.source].samples else None

    def is_shared(self, parameter):
        """Returns True if each core of a ring keeps only a share of a parameter and of its slots."""
        return self.masters[parameter] != parameter

    def __str__(self):
        """Lists stages, kept tensors, inputs, factors of parameters, and constants as text. `s` marks results of samples, `w`
        marks binary32. A constant is shown as its shape and a checksum of its bits."""
        lines = []
        for stage in self.stages:
            tensor = self.tensors[stage.output]
            kind = ("s" if tensor.samples else "-") + ("w" if tensor.wide else "-")
            is_part = stage.result_size != tensor.shape[:2]
            part = f" | {by(stage.result_size)} at {by(stage.origin)}" if is_part else ""
            lines.append(f"{kind} {stage.output} {by(tensor.shape)} = {stage}{part}")
        lines += [f"{name} <- {after}" for name, after in self.state.items()]
        lines += [f"input {name} {by(self.tensors[name].shape)}" for name in self.inputs]
        lines += [f"parameter {name} = {one.scale!r} * its weight" for name, one in self.parameters.items() if one.scale != 1]
        for name, values in self.constants.items():
            lines.append(f"constant {name} {by(values.shape)}#{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}")
        return "\n".join(lines)


def _are_equal(one, other):
    """Returns True if two arrays have equal bits: 0 differs from -0."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def dense_chain(name, layers):
    """Returns the graph of a chain of dense layers. The type of a layer's weights is bfloat16 (K, N).

    Parameters
    ----------
    layers : sequence of (name, weights bfloat16 (K, N), bias float32 (N,) or None, name of a function without parameters)
    """
    graph = Graph(name)
    graph.add_input("input", (1, 1, layers[0][1].shape[0]))
    graph.output = graph.input
    for number, (title, weights, bias, function) in enumerate(layers, 1):
        bits = weights.view(np.uint16)
        kept = np.where(bits == _MINUS_ZERO, 0, bits).view(weights.dtype)  # not structural: 0 times infinity is NaN
        term = graph.term(graph.output, f"{title}.weights", kept[None, None])
        start = None if bias is None else graph.constant(f"{title}.bias", bias[None, None])
        stage = Stage(f"{number}, {title}", (term,), start=start, function=Function(function), name=title)
        graph.output = graph.add_stage(stage, weights.shape[1], wide=number == len(layers))
    return graph

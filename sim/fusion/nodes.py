"""Nodes in binary64, one per operation, as the ONNX reader creates them before fusion.

A node computes one tensor, indexed (y, x, channel). :mod:`sim.fusion.fuse` merges nodes until each node is one stage.
:mod:`sim.fusion.rounding` then rounds their weights and lowers them to a :class:`sim.ir.graph.Graph`.
"""

from dataclasses import dataclass, field

import numpy as np

from ..functions.functions import NONE, Function
from ..ir.stage import Pool

__all__ = [
    "Affine",
    "Constant",
    "Copy",
    "Input",
    "Joint",
    "Linear",
    "Node",
    "SumRegion",
    "Tap",
    "Unknown",
    "ValueView",
    "identity",
    "per_channel",
]


@dataclass(frozen=True, eq=False)
class ValueView:
    """A tensor of the ONNX model that contains all values of a node, in any shape and order."""

    name: str
    shape: tuple[int, ...]  # shape of one sample
    #: Int array or None. For each value of the tensor, the flat index into the node's values (y, x, channel). None: the ONNX
    #: order (channel[, y, x]).
    index: np.ndarray | None = None

    def of(self, values):
        """Arranges the values of the node, (count, height, width, channels), as the tensor of the ONNX model."""
        values = np.asarray(values)
        if self.index is None:
            return values.transpose(0, 3, 1, 2).reshape(-1, *self.shape)
        return values.reshape(len(values), -1)[:, self.index].reshape(-1, *self.shape)


@dataclass(eq=False, kw_only=True)
class Node:
    """The base class of the nodes."""

    name: str  # name of the model's node, for messages and reports
    title: str  # description of the node in messages
    shape: tuple[int, int, int]  # (height, width, channels)
    value: str | None = None  # name of the ONNX tensor (batch, channels[, height, width]) with the node's values
    view: ValueView | None = None  # ONNX tensor with the node's values in another shape or order
    #: True if the memory layout is not fixed yet. Such a node is the input or an elementwise function of the input, and has the
    #: input's layout.
    loose: bool = False
    #: Pairs of some channels, a tuple of int, and a node that computes only these.
    narrower: list = field(default_factory=list, repr=False)

    sources = ()


@dataclass(eq=False, kw_only=True)
class Input(Node):
    """An input of the core. `sample` is its shape in the model, without the batch.

    `places` and `table` are those of :class:`sim.ir.sample_order.Feed`.
    """

    sample: tuple[int, ...]
    places: np.ndarray
    table: np.ndarray | None = None


@dataclass(eq=False, kw_only=True)
class Joint(Node):
    """A concatenation of flattened nodes into one vector, one after the other. Only a dense layer can consume it, or the host, as
    the results of a network."""

    sources: tuple[Node, ...]


@dataclass(eq=False, kw_only=True)
class Copy(Node):
    """A copy by strides. `index` has, for each value, its number in the flattened sources, one after the other; -1: 0."""

    sources: tuple[Node, ...]
    index: np.ndarray


@dataclass(eq=False, kw_only=True)
class Constant(Node):
    """Constant factors, (height, width, channels), by which the results of a node are multiplied."""

    values: np.ndarray


@dataclass(eq=False, kw_only=True)
class Unknown(Node):
    """An operation that no stage supports by itself, but that may be part of a supported function."""

    truth: bool = False  # True if the values are booleans, not numbers
    fault: "Unknown | None" = None  # first unsupported node among the operands, or None if this node is the first
    #: Callable or None. `why()` returns the reason why the node is not a supported function, or None if no reason is known.
    why: object = None


@dataclass(eq=False, kw_only=True)
class Affine(Node):
    """A multiplication and an addition of constants: `source * scale + shift`.

    `scale` and `shift` are None, or arrays that broadcast to the shape: (1, 1, channels) if all positions are equal. `folded` is
    a :class:`sim.fusion.merging.FoldedConstants`, or None if no constants have been folded.
    """

    source: Node
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    folded: object = None

    @property
    def sources(self):
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Tap:
    """A term of a sum before rounding: a convolution of one node with binary64 weights. It becomes a :class:`sim.ir.stage.Term`.

    If `exact`, each weight that bfloat16 cannot represent is split into a sum of two. If the tap only selects channels, `select`
    has the source's channel for each output channel, or -1. If `matrix` is given, a node with one row of positions, its values
    are the weights. `rows`: each position has the weights of a channel of the source, not of the result.
    """

    source: Node
    weights: np.ndarray
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    exact: bool = False
    select: np.ndarray | None = None
    matrix: Node | None = None
    rows: bool = False

    @property
    def kernel(self):
        return self.weights.shape[:2]

    def in_place(self, size):
        """Returns True if each position of sums of this (height, width) reads only the same position of the source, and all
        positions are read."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0) and self.source.shape[:2] == size

    def diagonal(self, size):
        """Returns True if the tap multiplies each value by a constant, without moving it. `size` is the (height, width) of the
        sums."""
        return self.exact and self.groups == self.source.shape[2] == self.weights.shape[3] and self.in_place(size)

    def identity(self, size):
        """Returns True if the tap copies each value, without moving it. `size` is the (height, width) of the sums."""
        return self.diagonal(size) and bool((self.weights == 1).all())


@dataclass(frozen=True, eq=False)
class SumRegion:
    """A rectangle of the sums of a node. `size` is (height, width), and `origin` is the position (top, left) in the node's
    tensor."""

    taps: tuple[Tap, ...]
    size: tuple[int, int]
    origin: tuple[int, int] = (0, 0)


@dataclass(eq=False, kw_only=True)
class Linear(Node):
    """A node that computes sums, followed by operations that the same stage can compute; see :class:`sim.ir.stage.Stage`.

    `bias` has the shape (channels,) or (parts, channels). `softmax` is "", "softmax" (over the channels) or "log". No stage
    computes the last, so the host must. `folded` is a :class:`sim.fusion.merging.FoldedConstants` with the shape of `bias`, or
    None if no constants have been folded.
    """

    parts: tuple[SumRegion, ...]
    bias: np.ndarray | None = None
    folded: object = None
    pool: Pool | None = None
    function: Function = NONE
    softmax: str = ""
    times: Node | None = None

    @property
    def sources(self):
        taps = tuple(node for part in self.parts for tap in part.taps for node in (tap.source, tap.matrix) if node is not None)
        return taps if self.times is None else (*taps, self.times)

    @property
    def open(self):
        """Returns True if the result is a sum or a maximum of sums, without activation function, softmax or product."""
        return self.function == NONE and not self.softmax and self.times is None

    @property
    def multiplies(self):
        """Returns True if a tap has the values of another node as its weights."""
        return any(tap.matrix is not None for part in self.parts for tap in part.taps)

    @property
    def plain(self):
        """Returns True if the node has one region, and computes only sums."""
        return self.open and self.pool is None and len(self.parts) == 1


_ONE = np.ones(())  # in place of as many ones as a tensor has channels


def identity(source):
    """Returns the :class:`SumRegion` that copies a node."""
    channels = source.shape[2]
    tap = Tap(source, np.broadcast_to(_ONE, (1, 1, 1, channels)), groups=channels, exact=True, select=np.arange(channels))
    return SumRegion((tap,), source.shape[:2])


def per_channel(array, shape):
    """Broadcasts an array to a shape (height, width, channels). If all positions are equal, returns the array with the shape (1,
    1, channels)."""
    array = np.broadcast_to(array, shape)
    first = array[:1, :1]
    return first.copy() if np.array_equal(np.broadcast_to(first, shape), array, equal_nan=True) else array

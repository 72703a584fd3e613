"""Nodes in binary64, one per operation, as the reader creates them before fusion.

A node computes one tensor, indexed (y, x, channel). :mod:`sim.fusion.fuse` merges nodes so that each is one stage, and
:mod:`sim.fusion.lowering` rounds them and lowers them to a :class:`sim.ir.graph.Graph`.
"""

from dataclasses import dataclass

import numpy as np

from ..functions.functions import NONE, Function
from ..ir.graph import Pool

__all__ = ["ValueView", "Node", "Input", "Joint", "Unknown", "Affine", "Linear", "SumRegion", "Tap", "identity", "per_channel"]


@dataclass(frozen=True, eq=False)
class ValueView:
    """A value of the model that contains all values of a node, in any shape and order.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Shape of one sample.
    index : int array or None
        Flat index into the node's values (y, x, channel) for each value. None: the ONNX order (channel[, y, x]).
    """

    name: str
    shape: tuple[int, ...]
    index: np.ndarray | None = None

    def of(self, values):
        """Returns the model's value for the node's values (count, height, width, channels)."""
        values = np.asarray(values)
        if self.index is None:
            return values.transpose(0, 3, 1, 2).reshape(-1, *self.shape)
        return values.reshape(len(values), -1)[:, self.index].reshape(-1, *self.shape)


@dataclass(eq=False, kw_only=True)
class Node:
    """Base class of the nodes.

    Parameters
    ----------
    name : str
        Name of the model's node, for messages and reports.
    title : str
        Title of the node in messages.
    shape : (int, int, int)
        (height, width, channels).
    value : str or None
        Name of the equal value of the model, (batch, channels[, height, width]).
    view : ValueView or None
        Equal value of the model, in any shape and order.
    loose : bool
        The memory layout is not fixed yet: the node is the input or an elementwise function of it, and has the input's layout.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    value: str | None = None
    view: ValueView | None = None
    loose: bool = False

    sources = ()


@dataclass(eq=False, kw_only=True)
class Input(Node):
    """The input of the model; `sample` is its shape in the model, without the batch."""

    sample: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Joint(Node):
    """A concatenation of flattened nodes into one vector, node by node; only a dense layer can consume it."""

    sources: tuple[Node, ...]


@dataclass(eq=False, kw_only=True)
class Unknown(Node):
    """An operation that no stage supports by itself, but which may be part of a supported function.

    Parameters
    ----------
    truth : bool
        The values are booleans, not numbers.
    fault : Unknown or None
        The first unsupported node among the operands; None if this node is the first.
    why : function or None
        Function without arguments that returns the reason why the node is not a supported function, if there is one.
    """

    truth: bool = False
    fault: "Unknown | None" = None
    why: object = None


@dataclass(eq=False, kw_only=True)
class Affine(Node):
    """A scale and shift: `source * scale + shift`.

    `scale` and `shift` are None or arrays that broadcast to the shape, (1, 1, channels) if equal at all positions. `folded` is a
    :class:`sim.fusion.merging.FoldedConstants` if constants have been folded.
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
    """An unrounded :class:`sim.ir.graph.Term`: a convolution of one node with binary64 weights.

    If `exact`, each weight that bfloat16 cannot represent becomes the sum of two. A tap that only selects channels has the
    source's channel, or -1, for each output channel in `select`. With `matrix`, a node with one row of positions, the values of
    that node are the weights; `rows` is defined in Term.
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
        """Returns True if each position of sums of this size reads the same position of the source, and all are read."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0) and self.source.shape[:2] == size

    def diagonal(self, size):
        """Returns True if the tap only scales each value in place, in sums of this size."""
        return self.exact and self.groups == self.source.shape[2] == self.weights.shape[3] and self.in_place(size)

    def identity(self, size):
        """Returns True if the tap copies each value in place, in sums of this size."""
        return self.diagonal(size) and bool((self.weights == 1).all())


@dataclass(frozen=True, eq=False)
class SumRegion:
    """A rectangle of sums of `size` (height, width), at `origin` (top, left) of the node's tensor."""

    taps: tuple[Tap, ...]
    size: tuple[int, int]
    origin: tuple[int, int] = (0, 0)


@dataclass(eq=False, kw_only=True)
class Linear(Node):
    """Sums and the operations that may follow them in one stage; see :class:`sim.ir.graph.Stage`.

    `bias` is (channels,) or (parts, channels). `softmax` is "", "softmax" (over the channels), "all" (over all values) or "log";
    no stage computes the last two, so the host must. `folded` is a :class:`sim.fusion.merging.FoldedConstants` with the shape of `bias` if
    constants have been folded.
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
        """True if the result is a sum or a maximum of sums, without function, softmax or product."""
        return self.function == NONE and not self.softmax and self.times is None

    @property
    def multiplies(self):
        """True if the values of a node are the weights of a tap."""
        return any(tap.matrix is not None for part in self.parts for tap in part.taps)

    @property
    def plain(self):
        """True if the node has one part and only sums."""
        return self.open and self.pool is None and len(self.parts) == 1


def identity(source):
    """Returns the part that copies a node."""
    channels = source.shape[2]
    tap = Tap(source, np.ones((1, 1, 1, channels)), groups=channels, exact=True, select=np.arange(channels))
    return SumRegion((tap,), source.shape[:2])


def per_channel(array, shape):
    """Broadcasts an array to a shape (height, width, channels); reduces it to (1, 1, channels) if all positions are equal."""
    array = np.broadcast_to(array, shape)
    first = array[:1, :1]
    return first.copy() if np.array_equal(np.broadcast_to(first, shape), array, equal_nan=True) else array

"""What a reader of models makes, an operation at a time, before anything is fused: nodes, in binary64.

A node makes one tensor of the graph to be, indexed (y, x, channel). :mod:`sim.fusion.fuse` joins nodes into what one stage can
do, :mod:`sim.fusion.lowering` rounds them and writes them down as a :class:`sim.ir.graph.Graph`.
"""

from dataclasses import dataclass

import numpy as np

from ..functions.functions import NONE, Function
from ..ir.graph import Pool

__all__ = ["ValueView", "Node", "Input", "Joint", "Unknown", "Affine", "Linear", "SumRegion", "Tap", "identity", "per_channel"]


@dataclass(frozen=True, eq=False)
class ValueView:
    """A value of the model that has all the values of a node.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Of one sample.
    index : int array or None
        Which of the node's values, as (y, x, channel), each is. None: (channel[, y, x]), which is how ONNX has them.
    """

    name: str
    shape: tuple[int, ...]
    index: np.ndarray | None = None

    def of(self, values):
        """The value for samples of which the node has these values (count, height, width, channels)."""
        values = np.asarray(values)
        if self.index is None:
            return values.transpose(0, 3, 1, 2).reshape(-1, *self.shape)
        return values.reshape(len(values), -1)[:, self.index].reshape(-1, *self.shape)


@dataclass(eq=False, kw_only=True)
class Node:
    """
    Parameters
    ----------
    name : str
        Of the model's node, for messages and reports.
    title : str
        How a message names it.
    shape : (int, int, int)
        (height, width, channels).
    value : str or None
        The model's value, (batch, channels[, height, width]), that this is.
    view : ValueView or None
        The model's value, of any shape and order, that this is.
    loose : bool
        Whether its memory layout is still free: it is the input, or element by element of it, so that it has whatever layout the
        input is given.
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
    """The input of the model, which has this shape there, without the batch."""

    sample: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Joint(Node):
    """A concatenation of flattened nodes: a vector of all their values, one node after the other, for a dense layer alone."""

    sources: tuple[Node, ...]


@dataclass(eq=False, kw_only=True)
class Unknown(Node):
    """What no stage can make, but which may be part of something that one can.

    Parameters
    ----------
    truth : bool
        Whether it is true or false, not numbers.
    fault : Unknown or None
        The first on the way to it that no stage can make, if that is not itself.
    why : function or None
        Why it is no function that a stage can make, if there is something to say.
    """

    truth: bool = False
    fault: "Unknown | None" = None
    why: object = None


@dataclass(eq=False, kw_only=True)
class Affine(Node):
    """`source * scale + shift`; both are None or arrays that broadcast to the shape, (1, 1, channels) if they are the same
    everywhere. `loss` is a :class:`sim.fusion.merging.Loss` if constants have been merged."""

    source: Node
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    loss: object = None

    @property
    def sources(self):
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Tap:
    """An unrounded :class:`sim.ir.graph.Term`: a convolution of one node, with binary64 weights. If `exact`, weights that
    bfloat16 can't hold become a sum of two. If all that it does is to choose channels, `select` is the source's channel for each
    of its own, or -1. With `matrix`, a node of one row of positions, the weights are its values: `rows` as in Term."""

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
        """Whether sums of this size have at each position what is made of the source's values there, and all of it is read."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0) and self.source.shape[:2] == size

    def diagonal(self, size):
        """Whether every value is only scaled, and stays where it is, in sums of this size."""
        return self.exact and self.groups == self.source.shape[2] == self.weights.shape[3] and self.in_place(size)

    def identity(self, size):
        """Whether every value stays what and where it is, in sums of this size."""
        return self.diagonal(size) and bool((self.weights == 1).all())


@dataclass(frozen=True, eq=False)
class SumRegion:
    """Sums of `size` (height, width) that are written from `origin` on."""

    taps: tuple[Tap, ...]
    size: tuple[int, int]
    origin: tuple[int, int] = (0, 0)


@dataclass(eq=False, kw_only=True)
class Linear(Node):
    """Sums, and what can come after them in one stage; see :class:`sim.ir.graph.Stage`. `bias` is (channels,) or (parts,
    channels), `softmax` "", "softmax" (over the channels), "all" (over all values) or "log"; the last two can only be left out.
    `loss` is a :class:`sim.fusion.merging.Loss`, of the shape of `bias`, if constants have been merged."""

    parts: tuple[SumRegion, ...]
    bias: np.ndarray | None = None
    loss: object = None
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
        """Whether its result is still a sum, or the largest of sums."""
        return self.function == NONE and not self.softmax and self.times is None

    @property
    def multiplies(self):
        """Whether weights of it are values of a node."""
        return any(tap.matrix is not None for part in self.parts for tap in part.taps)

    @property
    def plain(self):
        """Whether it is sums alone, of one part."""
        return self.open and self.pool is None and len(self.parts) == 1


def identity(source):
    """The part that only copies a node."""
    channels = source.shape[2]
    tap = Tap(source, np.ones((1, 1, 1, channels)), groups=channels, exact=True, select=np.arange(channels))
    return SumRegion((tap,), source.shape[:2])


def per_channel(array, shape):
    """An array of this shape (height, width, channels), as (1, 1, channels) if that says it all."""
    array = np.broadcast_to(array, shape)
    first = array[:1, :1]
    return first.copy() if np.array_equal(np.broadcast_to(first, shape), array, equal_nan=True) else array

"""What the reader of ONNX files knows of a tensor that depends on the input, and of a node that it goes into."""

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from onnx import NodeProto, TensorProto

from ...data.printable import printable
from ...fusion.nodes import Node
from ...ir.errors import ModelError
from ..messages import first_output, title

__all__ = [
    "SymbolicTensor",
    "Step",
    "BatchFixed",
    "FLOATS",
    "INTEGERS",
    "LIMIT",
    "MOST_VALUES",
    "LOWEST",
    "show",
    "common",
    "reduction",
    "limited",
    "whole",
]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
INTEGERS = (
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.UINT16,
    TensorProto.INT16,
    TensorProto.UINT32,
    TensorProto.INT32,
    TensorProto.UINT64,
    TensorProto.INT64,
    TensorProto.BOOL,
)

#: In an index: padding that is never the largest, which only MaxPool can read.
LOWEST = -2

#: The most values that the weights of one term, or what a single node repeats, may have.
LIMIT = 1 << 24

#: The most values that a tensor of one sample may have: the reader keeps a number for the place of each.
MOST_VALUES = 1 << 23


class BatchFixed(ModelError):
    """A node that ONNX only takes with `batch` samples, though the input leaves them open. If not `certain`, it takes others too,
    and it depends on what reads `node` whether these make sense."""

    def __init__(self, message, batch, node=None, certain=True):
        super().__init__(message)
        self.batch, self.node, self.certain = batch, node, certain


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """What is known of a tensor that depends on the input (its abstract value): the node whose values it has, and in which order.

    Which axis the samples are along is known from the input on, and never told by sizes.

    Parameters
    ----------
    dims : tuple of int
        Shape of one sample's part, of the tensor's rank. Along the batch's axis it is 1, or more if a Reshape has put values of a
        sample there: they stand together, sample after sample.
    source : Node
    index : int array (values of a sample,)
        Which of the node's values, as (y, x, channel), each is; -1: the constant 0; LOWEST: less than any value.
    batch : int or None
        The axis along which the samples are; None if all of the tensor is one sample.
    samples : int or None
        How many the model takes at a time; None if any number.
    bare : bool
        Whether the batch's axis is not there if there is one sample, as a Squeeze without axes has removed it.
    integer : bool
    label : str
        Not values any more, but the class: its "number", in the shape `dims`, or its "name". "": values.
    formulas : dict of SymbolicTensor to sim.functions.formulas.Formula
        What it is of some of the tensors before it, if it may be a part of a larger function.
    woven : bool
        Whether branches of the graph have reconverged in it, so that it may be a function written out in several operators.
    """

    dims: tuple[int, ...]
    source: Node
    index: np.ndarray
    batch: int | None = None
    samples: int | None = None
    bare: bool = False
    integer: bool = False
    label: str = ""
    formulas: dict = field(default_factory=dict, repr=False)
    woven: bool = False

    @property
    def size(self):
        """Values in one sample."""
        return len(self.index)

    @property
    def sample(self):
        """`index` in the shape of one sample's part."""
        return self.index.reshape(self.dims)

    @property
    def is_open(self):
        """Whether there may be any number of samples."""
        return self.batch is not None and self.samples is None

    def shape(self, samples):
        """The tensor's shape with so many samples."""
        return tuple(size * samples if axis == self.batch else size for axis, size in enumerate(self.dims))

    def permuted(self, sample, batch=-1):
        """The same samples with this index, in its shape; `batch` is the batch's axis, if it is not the same as before."""
        return replace(
            self, dims=sample.shape, index=np.ascontiguousarray(sample).reshape(-1), batch=self.batch if batch == -1 else batch
        )

    def of(self, node, sample=None):
        """The values of a node with this batch: by an index of its own shape, or in the same places as these."""
        return replace(self, source=node) if sample is None else replace(self.permuted(sample), source=node)


@dataclass(frozen=True, eq=False)
class Step:
    """A node that a :class:`SymbolicTensor` goes into, with the values of its inputs."""

    node: NodeProto
    arguments: list  # np.ndarray, SymbolicTensor or None
    attributes: dict
    opset: int

    @property
    def operator(self):
        return self.node.op_type

    @property
    def name(self):
        """The node's name in reports, never empty: its own, or that of the first output that is not left out."""
        return printable(self.node.name or first_output(self.node) or self.operator, 80)

    @property
    def title(self):
        return title(self.node)

    @property
    def titles(self):
        """What a node of the draft says of where it comes from."""
        return {"name": self.name, "title": self.title}

    def argument(self, index):
        """An input, or None if it is left out."""
        return self.arguments[index] if len(self.arguments) > index else None

    def integers(self, name, index=None):
        """A list of integers that is an attribute in some operator sets, an input in others; None if it is left out."""
        value = self.attributes.get(name)
        if value is None and index is not None:
            value = self.argument(index)
        if isinstance(value, SymbolicTensor):
            raise ModelError(f"{self.title}: its {name} must be constant")
        return None if value is None else [int(entry) for entry in np.asarray(value).reshape(-1)]


def show(shape):
    """How a message shows a shape: of a SymbolicTensor with the batch's axis by name, or as it stands, where None is an open
    batch."""
    if not isinstance(shape, SymbolicTensor):
        return "(" + ", ".join("batch" if size is None else str(int(size)) for size in shape) + ")"
    batch = "batch" if shape.is_open else f"batch of {shape.samples}"
    return (
        "("
        + ", ".join(
            (batch if size == 1 else f"{batch} * {size}") if axis == shape.batch else str(size)
            for axis, size in enumerate(shape.dims)
        )
        + ")"
    )


def reduction(step, tensor):
    """What a Reduce operator leaves: `(axes, dims, batch)`, the axes that it reduces and the rest as of a SymbolicTensor."""
    rank, axes, keep = len(tensor.dims), step.integers("axes", 1), step.attributes.get("keepdims", 1)
    axes = {axis % rank for axis in axes or range(rank)}
    if tensor.batch in axes:
        raise ModelError(f"{step.title}: reduces the batch of {show(tensor)}; only a sample's own axes may be")
    dims = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.dims) if keep or axis not in axes)
    return axes, dims, tensor.batch if keep or tensor.batch is None else tensor.batch - sum(axis < tensor.batch for axis in axes)


def common(step, *values):
    """`(dims, batch)`, as of a SymbolicTensor, that symbolic tensors, constants and shapes are broadcast to by ONNX' rules: from
    the last axis on."""
    values = [getattr(value, "shape", value) if not isinstance(value, SymbolicTensor) else value for value in values]
    shapes = [value.dims if isinstance(value, SymbolicTensor) else value for value in values]
    rank = max(map(len, shapes))
    tensors = [value for value in values if isinstance(value, SymbolicTensor)]
    batches = {rank - len(tensor.dims) + tensor.batch for tensor in tensors if tensor.batch is not None}
    text = f"{step.title}: shapes {' and '.join(map(show, values))} do not fit"
    if len(batches) > 1:
        raise ModelError(f"{text}: ONNX aligns the last axes, so samples meet values of other samples")
    batch = batches.pop() if batches else None
    dims = []
    for axis in range(rank):
        if axis == batch:
            if any(
                len(shape) >= rank - axis and shape[axis - rank] != 1
                for shape, value in zip(shapes, values)
                if not isinstance(value, SymbolicTensor)
            ):
                raise ModelError(f"{text}: along the batch, a constant may only have one value")
            sizes = {tensor.dims[axis - rank] for tensor in tensors}
        else:
            sizes = {shape[axis - rank] for shape in shapes if len(shape) >= rank - axis}
            sizes = sizes - {1} or {1}
        if len(sizes) > 1 or tensors and 0 in sizes:
            raise ModelError(text)
        dims += sizes
    return tuple(dims), batch


def limited(step, *sizes):
    """Refuses a tensor of a sample, or weights, that can't be meant."""
    if prod(int(size) for size in sizes) > LIMIT:
        raise ModelError(f"{step.title}: makes {show(sizes)} values, which is too large")


def whole(node):
    """The index of a node's values in the order (channel, y, x)."""
    height, width, channels = node.shape
    return np.arange(height * width * channels).reshape(height, width, channels).transpose(2, 0, 1)

"""Abstract values of the reader: symbolic tensors, and the evaluation step of one node."""

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

#: In an index: padding with the lowest number, which only MaxPool can read.
LOWEST = -2

#: Limit on the number of weights of one term, and on the number of values of a repetition.
LIMIT = 1 << 24

#: Limit on the number of values of one sample in a tensor: the reader keeps an index for each.
MOST_VALUES = 1 << 23


class BatchFixed(ModelError):
    """A node that ONNX accepts only with `batch` samples, though the input leaves the batch open. If not `certain`, ONNX accepts
    other batches too, and the readers of `node` decide whether these are valid."""

    def __init__(self, message, batch, node=None, certain=True):
        super().__init__(message)
        self.batch, self.node, self.certain = batch, node, certain


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A tensor that depends on the input, as an abstract value: the node that holds its values, and the index map into that node.

    The batch's axis is tracked from the input on, and never inferred from sizes.

    Parameters
    ----------
    dims : tuple of int
        Shape of one sample's part, of the tensor's rank. Along the batch's axis the size is 1, or more if a Reshape has moved
        values of a sample there: they are contiguous, sample after sample.
    source : Node
    index : int array (values of a sample,)
        Index of each value in the node, as (y, x, channel); -1: the constant 0; LOWEST: less than any value.
    batch : int or None
        The axis of the samples; None if the whole tensor is one sample.
    samples : int or None
        Batch size of the model; None if it is open.
    bare : bool
        With one sample the batch's axis is absent, since a Squeeze without axes has removed it.
    integer : bool
    label : str
        Kind of class label that the tensor holds instead of values: its "number", in the shape `dims`, or its "name". "": values.
    formulas : dict of SymbolicTensor to sim.functions.formulas.Formula
        The tensor as a formula of earlier tensors, if it may be part of a larger function.
    woven : bool
        Branches of the graph have reconverged in it, so it may be a function written out in several operators.
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
        """Number of values in one sample."""
        return len(self.index)

    @property
    def sample(self):
        """Index map `index` in the shape of one sample's part."""
        return self.index.reshape(self.dims)

    @property
    def is_open(self):
        """True if the number of samples is open."""
        return self.batch is not None and self.samples is None

    def shape(self, samples):
        """Returns the tensor's shape for this number of samples."""
        return tuple(size * samples if axis == self.batch else size for axis, size in enumerate(self.dims))

    def permuted(self, sample, batch=-1):
        """Returns the same samples with another index map, in the index map's shape. `batch` is the batch's axis. Default: as
        before."""
        return replace(
            self, dims=sample.shape, index=np.ascontiguousarray(sample).reshape(-1), batch=self.batch if batch == -1 else batch
        )

    def of(self, node, sample=None):
        """Returns the values of another node with this batch: by an index map in its own shape, or with this tensor's index
        map."""
        return replace(self, source=node) if sample is None else replace(self.permuted(sample), source=node)


@dataclass(frozen=True, eq=False)
class Step:
    """A node with a :class:`SymbolicTensor` among its inputs, and the values of its inputs."""

    node: NodeProto
    arguments: list  # np.ndarray, SymbolicTensor or None
    attributes: dict
    opset: int

    @property
    def operator(self):
        return self.node.op_type

    @property
    def name(self):
        """Name in reports, never empty: the node's name, or the name of the first output that is not left out."""
        return printable(self.node.name or first_output(self.node) or self.operator, 80)

    @property
    def title(self):
        return title(self.node)

    @property
    def titles(self):
        """Keywords that name the origin of a node of the binary64 network."""
        return {"name": self.name, "title": self.title}

    def argument(self, index):
        """Returns an input, or None if it is left out."""
        return self.arguments[index] if len(self.arguments) > index else None

    def integers(self, name, index=None):
        """Returns a list of integers that is an attribute in some operator sets and an input in others; None if it is left
        out."""
        value = self.attributes.get(name)
        if value is None and index is not None:
            value = self.argument(index)
        if isinstance(value, SymbolicTensor):
            raise ModelError(f"{self.title}: its {name} must be constant")
        return None if value is None else [int(entry) for entry in np.asarray(value).reshape(-1)]


def show(shape):
    """Returns a shape as text for messages. For a SymbolicTensor the batch's axis is named; in other shapes None is an open
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
    """Returns the result's `(axes, dims, batch)` of a Reduce operator: the reduced axes, and the shape in the form of a
    SymbolicTensor."""
    rank, axes, keep = len(tensor.dims), step.integers("axes", 1), step.attributes.get("keepdims", 1)
    axes = {axis % rank for axis in axes or range(rank)}
    if tensor.batch in axes:
        raise ModelError(f"{step.title}: reduces the batch of {show(tensor)}; only a sample's own axes can be reduced")
    dims = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.dims) if keep or axis not in axes)
    return axes, dims, tensor.batch if keep or tensor.batch is None else tensor.batch - sum(axis < tensor.batch for axis in axes)


def common(step, *values):
    """Returns the broadcast `(dims, batch)` of symbolic tensors, constants and shapes, by ONNX' rules: aligned at the last
    axis."""
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
    """Refuses a tensor, or weights, of an implausible size."""
    if prod(int(size) for size in sizes) > LIMIT:
        raise ModelError(f"{step.title}: makes {show(sizes)} values, which is too large")


def whole(node):
    """Returns the index map of all values of a node in the order (channel, y, x)."""
    height, width, channels = node.shape
    return np.arange(height * width * channels).reshape(height, width, channels).transpose(2, 0, 1)

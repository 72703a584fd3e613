"""The types of values while a graph is evaluated: symbolic tensors, and the step of one node."""

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from onnx import NodeProto, TensorProto

from ...data.printable import printable
from ...fusion.nodes import Node
from ...ir.errors import ModelError
from ..messages import first_output, title

__all__ = [
    "STAND_IN",
    "SymbolicTensor",
    "Step",
    "BatchFixed",
    "FLOATS",
    "INTEGERS",
    "LIMIT",
    "MOST_VALUES",
    "LOWEST",
    "has_all",
    "hidden",
    "hide",
    "revealed",
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

#: Takes the place of minus infinity where an input decides; the sum of several is finite in bfloat16.
STAND_IN = -(2.0**120)

_HIDDEN = -4  # in an index: _HIDDEN - i is entry i plus minus infinity, which only Softmax can read

#: Limit on the number of weights of one term, and on the number of values of a repetition.
LIMIT = 1 << 24

#: Limit on the number of values of one sample in a tensor: the reader keeps an index for each.
MOST_VALUES = 1 << 23


class BatchFixed(ModelError):
    """The error about a node that ONNX accepts only for the batch size `batch`, although the batch size of the input is open. If
    `certain` is False, ONNX also accepts other batch sizes at this `node`. The nodes that read its output then decide which
    batch sizes are valid."""

    def __init__(self, message, batch, node=None, certain=True):
        super().__init__(message)
        self.batch, self.node, self.certain = batch, node, certain


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A tensor that depends on the input. It is represented by the node that holds its values and by an index map into that node.

    The batch axis is tracked through the graph, starting at the input. It is never inferred from sizes.
    """

    #: Shape of the part of one sample, with all axes of the tensor. The size of the batch axis is usually 1. It is larger if a
    #: Reshape has moved values of a sample into this axis; the values of each sample are then contiguous.
    dims: tuple[int, ...]
    source: Node
    #: Int array (values of a sample,). Index of each value in the node, as (y, x, channel); -1: the constant 0; LOWEST: less than
    #: any value; see :func:`hide`.
    index: np.ndarray
    batch: int | None = None  # The batch axis. None if the whole tensor is one sample.
    samples: int | None = None  # Batch size of the model. None: the batch size is open.
    #: Along the batch's axis, a Reshape has moved this number of values of a sample before the samples: the axis is (outer,
    #: samples, rest), so a sample's values there are not contiguous.
    outer: int = 1
    bare: bool = False  # True if the batch axis is missing when the batch size is one, because of a Squeeze without axes
    integer: bool = False  # has an integer type, or holds truth values
    truth: bool = False  # holds truth values, as the numbers 0 and 1
    #: Large negative numbers may stand for minus infinity. Only a Softmax, which gives 0 for both, may compute with the tensor.
    low: bool = False
    shares: bool = False  # is the result of a Softmax
    emptied: bool = False  # is computed from a Softmax with rows that a constant mask hides completely: their values are NaN
    undefined: bool = False  # holds the truth values of IsNaN; its node and index are those of the operand
    #: SymbolicTensor or None. For a `low` tensor, and for the Softmax of one: in the same shape, 0 where minus infinity is added,
    #: else 1.
    guard: object = field(default=None, repr=False)
    #: "": the tensor holds values. "number": it is a class label, as a number, in the shape `dims`. "name": it is the name of a
    #: class.
    label: str = ""
    #: Dict of SymbolicTensor to sim.functions.formulas.Formula. Formulas that express the tensor by earlier tensors, if the
    #: tensor may be part of a function written in several operators.
    formulas: dict = field(default_factory=dict, repr=False)
    #: True if branches of the graph have reconverged in the tensor. Only then may the tensor be the result of a function written
    #: in several operators.
    woven: bool = False

    @property
    def size(self):
        """Returns the number of values in one sample."""
        return len(self.index)

    @property
    def sample(self):
        """Returns the index map in the shape of one sample's part, `dims`."""
        return self.index.reshape(self.dims)

    @property
    def is_open(self):
        """Returns True if the batch size is open."""
        return self.batch is not None and self.samples is None

    def shape(self, samples):
        """Returns the tensor's shape for the batch size `samples`."""
        return tuple(size * samples if axis == self.batch else size for axis, size in enumerate(self.dims))

    def permuted(self, sample, batch=-1):
        """Returns a tensor with the same node and the index map `sample`, an array in the new shape. `batch` is the batch axis
        in the new shape. Default: the axis number does not change."""
        return replace(
            self, dims=sample.shape, index=np.ascontiguousarray(sample).reshape(-1), batch=self.batch if batch == -1 else batch
        )

    def of(self, node, sample=None):
        """Returns a tensor with the same batch and the node `node`. `sample` is the index map into `node`, in the new shape.
        Default: the index map of this tensor."""
        return replace(self, source=node) if sample is None else replace(self.permuted(sample), source=node)


@dataclass(frozen=True, eq=False)
class Step:
    """The evaluation of one ONNX node: the node, and the values of its inputs and attributes."""

    node: NodeProto
    arguments: list  # np.ndarray, SymbolicTensor or None
    attributes: dict
    opset: int
    training: bool = False  # True for a model in the form that training needs

    @property
    def operator(self):
        return self.node.op_type

    @property
    def name(self):
        """Returns the name of the node for reports. If the node has no name, returns the name of its first output that is not
        left out. The result is never empty."""
        return printable(self.node.name or first_output(self.node) or self.operator, 80)

    @property
    def title(self):
        return title(self.node)

    @property
    def titles(self):
        """Returns the arguments `name` and `title` for a node of the binary64 network that this ONNX node creates."""
        return {"name": self.name, "title": self.title}

    def argument(self, index):
        """Returns the value of an input. Returns None if the input is left out."""
        return self.arguments[index] if len(self.arguments) > index else None

    def integers(self, name, index=None):
        """Returns a list of integers that is the attribute `name` in some operator sets, and input number `index` in other
        operator sets. Returns None if the list is left out."""
        value = self.attributes.get(name)
        if value is None and index is not None:
            value = self.argument(index)
        if isinstance(value, SymbolicTensor):
            raise ModelError(f"{self.title}: its {name} must be constant")
        return None if value is None else [int(entry) for entry in np.asarray(value).reshape(-1)]


def show(shape):
    """Returns a shape as text for messages. If `shape` is a SymbolicTensor, the text names the batch axis. In other shapes, None
    is an open batch size."""
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
    """Returns `(axes, dims, batch)` of a Reduce operator: the set of reduced axes, and the members `dims` and `batch` of the
    result."""
    rank, axes, keep = len(tensor.dims), step.integers("axes", 1), step.attributes.get("keepdims", 1)
    axes = {axis % rank for axis in axes or range(rank)}
    if tensor.batch in axes:
        raise ModelError(f"{step.title}: reduces the batch of {show(tensor)}; only a sample's own axes can be reduced")
    dims = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.dims) if keep or axis not in axes)
    return axes, dims, tensor.batch if keep or tensor.batch is None else tensor.batch - sum(axis < tensor.batch for axis in axes)


def common(step, *values):
    """Returns the broadcast shape `(dims, batch)` of symbolic tensors, constants and shapes. As ONNX defines, shapes are aligned
    at the last axis."""
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


def hide(index, mask):
    """Returns an index in which minus infinity is added to the values that a mask selects."""
    return np.where(mask & (index > _HIDDEN + 1), _HIDDEN - index, index)


def hidden(index):
    """Returns a mask of the values to which minus infinity is added."""
    return index <= _HIDDEN + 1


def revealed(index):
    """Returns an index without the effect of :func:`hide`."""
    return np.where(hidden(index), _HIDDEN - index, index)


def limited(step, *sizes):
    """Raises an error if the product of the sizes of a tensor or of weights is implausibly large."""
    if prod(int(size) for size in sizes) > LIMIT:
        raise ModelError(
            f"{step.title}: makes {show(sizes)} values, which is too large; "
            f"choose smaller inputs (by --shape or `shapes`, if the file leaves sizes open), or cut the model before it"
        )


def has_all(index, size):
    """Returns True if an index map has each of `size` values exactly once, in any order."""
    if index.size != size or not size or index.min() < 0 or index.max() >= size:
        return False
    seen = np.zeros(size, bool)
    seen[index.reshape(-1)] = True
    return bool(seen.all())


def whole(node):
    """Returns the index map of all values of a node, in the shape (channel, y, x)."""
    height, width, channels = node.shape
    return np.arange(height * width * channels).reshape(height, width, channels).transpose(2, 0, 1)

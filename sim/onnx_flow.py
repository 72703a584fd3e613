"""What the reader of ONNX files knows of a tensor that depends on the input, and of a node that it goes into."""

from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import NodeProto, TensorProto

from .golden import round_bfloat16
from .network import Dense, ModelError

__all__ = ["Flow", "Linear", "Step", "BatchFixed", "SUPPORTED", "FOLDABLE", "LINEAR", "ELEMENTWISE", "SHAPE", "ML", "FUSED",
           "FLOATS", "INTEGERS", "ANY_BATCH", "inline", "title", "unsupported", "show", "sample_axis"]

LINEAR = ("Gemm", "MatMul", "Einsum")
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization")
SHAPE = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "Cast", "CastLike", "Shape")
_RELU = ("Relu", "Clip", "Max")         # the last two if they are a Relu: bounded by 0 from below, and not from above
_FINAL = ("Softmax", "LogSoftmax", "ArgMax")
FUSED = "FusedGemm"                     # of domain com.microsoft: onnxruntime's Gemm with its function
ML = ("Scaler", "ZipMap", "ArrayFeatureExtractor")     # of domain ai.onnx.ml: how scikit-learn's start and end

#: Operators that a network may have on the way from its input to its output.
SUPPORTED = (*LINEAR, *_RELU, *ELEMENTWISE, *SHAPE, *_FINAL, "Constant")

#: Operators that may stand between constants.
FOLDABLE = ("Constant", "ConstantOfShape", "Abs", "Concat", "Equal", "Exp", "Gather", "Min", "Pow", "Reciprocal",
            "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum", "Size", "Slice", "Split", "Sqrt", "Sum", "Where",
            *LINEAR, *_RELU, *SHAPE, *[name for name in ELEMENTWISE if name != "BatchNormalization"])

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
INTEGERS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT32,
            TensorProto.INT32, TensorProto.UINT64, TensorProto.INT64, TensorProto.BOOL)

#: Stands for a batch of any size in shapes, also in those that the graph computes. A prime, so that no product of
#: other sizes is mistaken for it.
ANY_BATCH = 1_000_003


class BatchFixed(ModelError):
    """A Reshape that is only right for `batch` samples."""

    def __init__(self, message, batch):
        super().__init__(message)
        self.batch = batch


@dataclass(frozen=True, eq=False)
class Linear:
    """A layer whose function has not come yet, in binary64 where something has been folded in."""

    name: str
    weights: np.ndarray
    bias: np.ndarray | None

    def close(self, function):
        with np.errstate(all="ignore"):
            weights = round_bfloat16(self.weights.astype(np.float32))
            bias = None if self.bias is None else self.bias.astype(np.float32)
        return Dense(self.name, weights, bias, function)


@dataclass(frozen=True, eq=False)
class Flow:
    """What is known of a tensor that depends on the input: layers behind it, and what waits to be folded into one.

    A sample's values are always together, in order, so a shape is free as long as its product stays.
    """

    dims: tuple[int, ...]               # with the batch
    size: int                           # values in one sample
    integer: bool = False
    layers: tuple[Dense, ...] = ()
    open: Linear | None = None          # takes up what is folded, if there is one; else the next layer will:
    order: np.ndarray | None = None     # value j of the sample is value order[j] of the last layer,
    scale: np.ndarray | None = None     # times scale[j],
    shift: np.ndarray | None = None     # plus shift[j]
    waiting: str = ""                   # the node that order, scale or shift came from
    softmax: bool = False
    label: bool = False                 # not values any more, but the class


@dataclass(frozen=True, eq=False)
class Step:
    """A node that a :class:`Flow` goes into, with the values of its inputs."""

    node: NodeProto
    arguments: list                     # np.ndarray, Flow or None
    attributes: dict
    opset: int

    @property
    def operator(self):
        return self.node.op_type

    @property
    def title(self):
        return title(self.node)


def inline(text, limit=300):
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[:limit - 3] + "..."


def title(node):
    operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    name = repr(node.name) if node.name else f"(unnamed, makes {node.output[0]!r})" if node.output else "(unnamed)"
    return f"operator {operator}, node {name}"


def unsupported(node, why="is not supported"):
    return ModelError(f"{title(node)}: {why}; supported are {', '.join(SUPPORTED)}")


def show(dims):
    return "(" + ", ".join("batch" if size == ANY_BATCH else str(int(size)) for size in dims) + ")"


def sample_axis(dims, size):
    """The first axis that belongs to a sample of this size, all before it being the batch; None if an axis is both."""
    return next((axis for axis in range(len(dims) + 1) if prod(dims[axis:]) == size), None)

"""The compiler's input: a chain of dense layers, read from ONNX.

The graph is followed from its output back to its one input. What is constant is computed; what only renames the order or
the shape of a sample costs nothing; what scales or shifts it is folded into the nearest layer's weights and bias, in
binary64, before the weights are rounded to bfloat16. What remains are layers. Anything else is refused with a
:class:`ModelError` that names operator and node.
"""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from .golden import bfloat16, round_bfloat16

__all__ = ["Dense", "Network", "ModelError", "load_network", "SUPPORTED"]

_LINEAR = ("Gemm", "MatMul")
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization")
_SHAPE = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "Cast", "Shape")
_FINAL = ("Softmax", "LogSoftmax", "ArgMax")
_ML = ("Scaler", "ZipMap", "ArrayFeatureExtractor")     # of domain ai.onnx.ml: how scikit-learn's start and end

#: Operators that a network may have on the way from its input to its output.
SUPPORTED = (*_LINEAR, "Relu", *_ELEMENTWISE, *_SHAPE, *_FINAL, "Constant")

#: Operators that may stand between constants.
_FOLDABLE = ("Constant", "ConstantOfShape", "Abs", "Concat", "Exp", "Gather", "Gemm", "MatMul", "Max", "Min", "Pow",
             "Reciprocal", "ReduceProd", "Relu", "Size", "Slice", "Split", "Sqrt",
             *_SHAPE, *[name for name in _ELEMENTWISE if name != "BatchNormalization"])

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_INTEGERS = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT32,
             TensorProto.INT32, TensorProto.UINT64, TensorProto.INT64, TensorProto.BOOL)

#: Stands for a batch of any size in shapes, also in those that the graph computes. A prime, so that no product of
#: other sizes is mistaken for it.
_ANY_BATCH = 1_000_003


class ModelError(ValueError):
    """A model that can't be compiled; one line that names the cause, the operator and its node, and the mend."""


class _BatchOfOne(ModelError):
    """A Reshape that is only right for one sample."""


@dataclass(frozen=True, eq=False)
class Dense:
    """One layer: `function(x @ weights + bias)`, with weights bfloat16 (K, N), bias float32 (N,) or None, and function
    `"none"` or `"relu"`."""

    name: str
    weights: np.ndarray
    bias: np.ndarray | None = None
    function: str = "none"


@dataclass(frozen=True)
class Network:
    """A chain of layers.

    Parameters
    ----------
    name : str
    input_size : int
        Values in one sample, in the order of the ONNX input.
    layers : tuple of Dense
    softmax : bool
        Whether the model ended in Softmax or LogSoftmax, which is left out: layers end with the logits.
    input_shape : tuple of int
        Shape of one sample, as the model had it.
    preprocess : str or None
        What the model's metadata says under `preprocess`: how pixels become inputs (:data:`sim.data.PREPROCESSING`).
    """

    name: str
    input_size: int
    layers: tuple[Dense, ...]
    softmax: bool = False
    input_shape: tuple[int, ...] = ()
    preprocess: str | None = None

    @property
    def output_size(self):
        """Values in one result."""
        return self.layers[-1].weights.shape[1]


@dataclass(frozen=True, eq=False)
class _Linear:
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
class _Flow:
    """What is known of a tensor that depends on the input: layers behind it, and what waits to be folded into one.

    A sample's values are always together, in order, so a shape is free as long as its product stays.
    """

    dims: tuple[int, ...]               # with the batch
    size: int                           # values in one sample
    integer: bool = False
    layers: tuple[Dense, ...] = ()
    open: _Linear | None = None         # takes up what is folded, if there is one; else the next layer will:
    order: np.ndarray | None = None     # value j of the sample is value order[j] of the last layer,
    scale: np.ndarray | None = None     # times scale[j],
    shift: np.ndarray | None = None     # plus shift[j]
    waiting: str = ""                   # the node that order, scale or shift came from
    softmax: bool = False
    label: bool = False                 # not values any more, but the class


def _inline(text, limit=300):
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[:limit - 3] + "..."


def _title(node):
    operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    name = repr(node.name) if node.name else f"(unnamed, makes {node.output[0]!r})" if node.output else "(unnamed)"
    return f"operator {operator}, node {name}"


def _unsupported(node, why="is not supported"):
    return ModelError(f"{_title(node)}: {why}; supported are {', '.join(SUPPORTED)}")


class _Reader:
    """Follows one graph, with `batch` samples where it leaves the batch open."""

    def __init__(self, model, folder, batch=_ANY_BATCH):
        self.graph, self.folder, self.batch = model.graph, folder, batch
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.values = {}                # name -> np.ndarray or _Flow; several outputs are several names
        self.producers = {}
        for node in self.graph.node:
            for name in filter(None, node.output):
                if name in self.producers:
                    raise ModelError(f"two nodes make {name!r}: {_title(self.producers[name])} and {_title(node)}")
                self.producers[name] = node

    def read(self):
        """`(_Flow, input shape)` of the output."""
        if not self.opset:
            raise ModelError("the file does not say which operator set it uses; is it truncated?")
        if self.opset < 8:
            raise ModelError(f"opset {self.opset} is too old; convert the model to 8 or later "
                             f"(onnx.version_converter)")
        shape = self._read_input()
        if not self.graph.output:
            raise ModelError("the graph has no output")
        self._check_operators()
        flows = []
        for entry in self.graph.output:
            flow = self._evaluate(entry.name)
            if not isinstance(flow, _Flow):
                raise ModelError(f"output {entry.name!r} does not depend on the input")
            flows.append(flow)
        first = flows[0]
        # Logits, probabilities and labels of the same last layer are one result.
        if any(f.layers != first.layers or f.open is not first.open or f.waiting != first.waiting for f in flows):
            names = ", ".join(repr(entry.name) for entry in self.graph.output)
            raise ModelError(f"the graph has several outputs: {names}; export it with one")
        if first.waiting:
            raise ModelError(f"{first.waiting}: comes after the last layer, where it can't be folded into weights; "
                             f"remove it")
        if first.open:
            first = replace(first, layers=(*first.layers, first.open.close("none")), open=None)
        if not first.layers:
            raise ModelError(f"there is no layer in it; at least one {' or '.join(_LINEAR)} is needed")
        return replace(first, softmax=any(f.softmax for f in flows)), shape

    def _read_input(self):
        inputs = [entry for entry in self.graph.input if entry.name not in self.initializers]
        if len(inputs) != 1:
            names = ", ".join(repr(entry.name) for entry in inputs) or "none"
            raise ModelError(f"the graph must have one input, not {len(inputs)} ({names})")
        entry = inputs[0]
        if entry.name in self.producers:
            raise ModelError(f"{_title(self.producers[entry.name])}: makes {entry.name!r}, which is the input")
        kind = entry.type.tensor_type
        if not entry.type.HasField("tensor_type") or kind.elem_type not in (*_FLOATS, *_INTEGERS):
            raise ModelError(f"input {entry.name!r} is not a tensor of numbers")
        if not kind.HasField("shape") or not kind.shape.dim:
            raise ModelError(f"input {entry.name!r} has no shape; export the model with one")
        dims = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]
        if any(d.HasField("dim_value") and d.dim_value == 0 for d in kind.shape.dim[1:]):
            raise ModelError(f"input {entry.name!r} is empty: one of its sizes is 0")
        shown = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
        sample = dims[1:] if len(dims) > 1 else dims        # of rank 1: a sample with no batch
        if None in sample:
            raise ModelError(f"input {entry.name!r} has the shape ({', '.join(shown)}): only the first size, the batch, "
                             f"may be open; export the model with fixed sizes")
        if len(dims) > 1:
            dims[0] = dims[0] or self.batch
        self.values[entry.name] = _Flow(dims=tuple(dims), size=prod(sample), integer=kind.elem_type in _INTEGERS)
        return tuple(sample)

    # Values, by name

    def _evaluate(self, name):
        """The value of this name, after those that it needs; iterative, since graphs may be deep."""
        stack, entered = [name], set()
        while stack:
            name = stack[-1]
            if name in self.values:
                stack.pop()
                continue
            if name in self.initializers:
                self.values[name] = self._constant(self.initializers[name], f"initialiser {name!r}")
                continue
            node = self.producers.get(name)
            if node is None:
                raise ModelError(self._missing(name))
            wanted = [n for n in node.input if n and n not in self.values]
            if node.domain == "ai.onnx.ml":         # the names of the classes may be strings
                wanted = [n for n in wanted if n not in self.initializers]
            if wanted:
                if name in entered:
                    raise ModelError(f"{_title(node)}: the graph is cyclic: {name!r} depends on itself")
                entered.add(name)
                stack += wanted
                continue
            self._run(node)
            if name not in self.values:
                raise ModelError(f"{_title(node)}: its output {name!r} is not supported")
        return self.values[name]

    def _missing(self, name):
        users = [node for node in self.graph.node if name in node.input]
        if not users:
            return f"output {name!r} is made by no node"
        if any(tensor.values.name == name for tensor in self.graph.sparse_initializer):
            return f"{_title(users[0])}: {name!r} is a sparse initialiser; store it as a plain one"
        return f"{_title(users[0])}: its input {name!r} is missing: no initialiser, input or node has this name"

    def _check_operators(self):
        """Refuses what can't be right whatever goes into it: the first in the file's order, of those needed."""
        needed, stack = set(), [entry.name for entry in self.graph.output]
        while stack:
            name = stack.pop()
            if name in self.producers and name not in needed:
                needed.add(name)
                stack += filter(None, self.producers[name].input)
        for node in self.graph.node:
            if needed.intersection(node.output):
                self._check_operator(node)

    def _check_operator(self, node):
        if node.domain == "ai.onnx.ml" and node.op_type in _ML:
            return
        if node.domain not in ("", "ai.onnx"):
            raise _unsupported(node, f"the domain {node.domain!r} is not supported")
        if node.op_type not in SUPPORTED and node.op_type not in _FOLDABLE:
            raise _unsupported(node)

    def _constant(self, tensor, title):
        # Whatever a damaged tensor makes onnx and numpy raise, the model is what is wrong.
        try:
            if external_data_helper.uses_external_data(tensor):
                loaded = TensorProto()
                loaded.CopyFrom(tensor)
                external_data_helper.load_external_data_for_tensor(loaded, str(self.folder))
                tensor = loaded
            if tensor.data_type not in (*_FLOATS, *_INTEGERS):
                kinds = {number: kind for kind, number in TensorProto.DataType.items()}
                raise ModelError(f"{title} has the type {kinds.get(tensor.data_type, tensor.data_type)}; supported are "
                                 f"float32, float64, float16, bfloat16 and integers")
            array = numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{title} can't be read: {_inline(error)}") from None
        return _plain(array)

    # Nodes

    def _run(self, node):
        arguments = [self.values.get(name) if name else None for name in node.input]
        try:
            with np.errstate(all="ignore"):
                attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
                flows = [value for value in arguments if isinstance(value, _Flow)]
                if flows:
                    result = [self._step(node, arguments, attributes)]
                else:
                    result = self._fold(node, arguments, attributes)
        except ModelError:
            raise
        except Exception as error:          # a missing input, an attribute of the wrong type, shapes that do not fit
            raise ModelError(f"{_title(node)}: malformed: {type(error).__name__}: {_inline(error)}") from None
        for name, value in zip(node.output, result):
            if name:
                self.values[name] = value

    def _fold(self, node, arguments, attributes):
        """Outputs of a node that only has constants."""
        if node.op_type not in _FOLDABLE or node.domain not in ("", "ai.onnx"):
            raise _unsupported(node, "is not supported on constants")
        if node.op_type == "Constant":
            (key, value), = attributes.items()
            if key == "value":
                return [self._constant(value, _title(node))]
            kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
            if key not in kinds:
                raise ModelError(f"{_title(node)}: {key} is not supported; use a tensor")
            return [np.array(value, dtype=kinds[key])]
        if node.op_type == "ConstantOfShape" and prod(int(d) for d in arguments[0].reshape(-1)) > 1 << 24:
            raise ModelError(f"{_title(node)}: too large")
        from onnx.reference import ReferenceEvaluator               # slow to import, and seldom needed
        names = [name for name in node.input if name]
        inputs = {name: self.values[name] for name in names}
        graph = helper.make_graph(
            [node], "fold", [onnx.ValueInfoProto(name=name) for name in inputs],
            [onnx.ValueInfoProto(name=name) for name in node.output if name])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        outputs = iter(ReferenceEvaluator(model).run(None, inputs))
        return [_plain(np.asarray(next(outputs))) if name else None for name in node.output]

    def _step(self, node, arguments, attributes):
        """The value of a node that a _Flow goes into."""
        flow = next(value for value in arguments if isinstance(value, _Flow))
        if sum(isinstance(value, _Flow) for value in arguments) > 1:
            raise ModelError(f"{_title(node)}: joins two branches; only a chain of layers is supported, "
                             f"{', '.join(_ELEMENTWISE[:4])} with a constant")
        if node.op_type == "Scaler" and not (flow.label or flow.softmax):
            offset, scale = (np.array(attributes[key], dtype=np.float64) for key in ("offset", "scale"))
            return self._fold_in(node, replace(flow, integer=False), scale=scale, shift=-offset * scale)
        if node.op_type in ("ArgMax", *_ML[1:]):
            return replace(flow, label=True)
        if flow.label:
            if node.op_type in _SHAPE and node.op_type != "Shape":
                return flow
            raise ModelError(f"{_title(node)}: nothing may come after ArgMax")
        if node.op_type not in SUPPORTED:
            raise _unsupported(node)
        if flow.softmax and node.op_type not in _SHAPE:
            raise ModelError(f"{_title(node)}: nothing may come after Softmax, which is left out; remove it")
        if flow.integer and node.op_type not in _SHAPE:
            raise ModelError(f"{_title(node)}: works on integers; put a Cast to float before it")
        if node.op_type in _SHAPE and not isinstance(arguments[0], _Flow):
            raise ModelError(f"{_title(node)}: its shape must be constant")
        return getattr(self, f"_{_HANDLERS[node.op_type]}")(node, flow, arguments, attributes)

    # Shapes

    def _keep(self, node, flow, arguments, attributes):
        if node.op_type == "Dropout" and len(arguments) > 2 and arguments[2] is not None and arguments[2].any():
            raise ModelError(f"{_title(node)}: must be exported for inference, not for training")
        if node.op_type != "Cast":
            return flow
        kind = attributes["to"]
        if kind in _INTEGERS and not flow.integer:
            raise ModelError(f"{_title(node)}: a Cast to integers is not supported; remove it")
        if kind not in (*_FLOATS, *_INTEGERS):
            raise ModelError(f"{_title(node)}: a Cast to this type is not supported; use float32")
        if kind in _INTEGERS and kind not in (TensorProto.INT32, TensorProto.INT64):
            raise ModelError(f"{_title(node)}: a Cast to small integers is not supported; use float32")
        return replace(flow, integer=kind in _INTEGERS)

    def _shape(self, node, flow, arguments, attributes):
        start, end = attributes.get("start", 0), attributes.get("end")
        return np.array(flow.dims[start:end], dtype=np.int64)

    def _reshape(self, node, flow, arguments, attributes):
        dims, operator = flow.dims, node.op_type
        if operator == "Flatten":
            axis = attributes.get("axis", 1)
            axis += len(dims) if axis < 0 else 0
            target = [prod(dims[:axis]), prod(dims[axis:])]
        elif operator == "Reshape":
            shape = [int(size) for size in arguments[1].reshape(-1)]
            zero = attributes.get("allowzero", 0)
            target = [dims[i] if size == 0 and not zero else size for i, size in enumerate(shape)]
            if target.count(-1) > 1:
                raise ModelError(f"{_title(node)}: two open sizes in {_show(shape)}")
            if -1 in target:
                target[target.index(-1)] = prod(dims) // max(1, -prod(target))
        else:
            axes = attributes.get("axes")
            if axes is None and len(arguments) > 1 and arguments[1] is not None:
                axes = [int(axis) for axis in arguments[1].reshape(-1)]
            if operator == "Squeeze":
                axes = [axis for axis, size in enumerate(dims) if size == 1] if axes is None else axes
                axes = {axis % len(dims) for axis in axes}
                target = [size for axis, size in enumerate(dims) if axis not in axes]
            else:
                rank = len(dims) + len(axes)
                axes, rest = {axis % rank for axis in axes}, iter(dims)
                target = [1 if axis in axes else next(rest) for axis in range(rank)]
        fits = prod(target) == prod(dims) and min(target, default=1) > 0
        if not fits or target[:1] == [1] and _sample_axis(target, flow.size) is None:
            raise _BatchOfOne(f"{_title(node)}: shape {_show(dims)} can't become {_show(target)}")
        return replace(flow, dims=tuple(target))

    def _transpose(self, node, flow, arguments, attributes):
        axes = list(attributes.get("perm", range(len(flow.dims))[::-1]))
        if sorted(axes) != list(range(len(flow.dims))):
            raise ModelError(f"{_title(node)}: perm {axes} does not fit the shape {_show(flow.dims)}")
        target = tuple(flow.dims[axis] for axis in axes)
        # Axes of size 1 may go anywhere.
        kept = [axis for axis, size in enumerate(flow.dims) if size != 1]
        moved = [kept.index(axis) for axis in axes if axis in kept]
        if moved == sorted(moved):
            return replace(flow, dims=target)
        sizes = tuple(flow.dims[axis] for axis in kept)
        first = _sample_axis(sizes, flow.size)
        if first is None or moved[:first] != list(range(first)):
            raise ModelError(f"{_title(node)}: moves the batch; only a sample's own axes may be transposed")
        inside = [axis - first for axis in moved[first:]]
        order = np.arange(flow.size).reshape(sizes[first:]).transpose(inside).reshape(-1)
        if flow.open:
            bias = None if flow.open.bias is None else flow.open.bias[order]
            return replace(flow, dims=target, open=replace(flow.open, weights=flow.open.weights[:, order], bias=bias))
        return replace(flow, dims=target, waiting=_title(node),
                       order=order if flow.order is None else flow.order[order],
                       scale=None if flow.scale is None else flow.scale[order],
                       shift=None if flow.shift is None else flow.shift[order])

    # Values

    def _relu(self, node, flow, arguments, attributes):
        if flow.open:
            return replace(flow, layers=(*flow.layers, flow.open.close("relu")), open=None)
        if flow.layers and flow.layers[-1].function == "relu" and not flow.waiting:
            return flow
        raise ModelError(f"{_title(node)}: must come after a layer ({' or '.join(_LINEAR)}, with or without Add)")

    def _softmax(self, node, flow, arguments, attributes):
        rank = len(flow.dims)
        axis = attributes.get("axis", -1 if self.opset >= 13 else 1)
        axis += rank if axis < 0 else 0
        # Before opset 13 everything from the axis on was taken together.
        covered = flow.dims[axis] if self.opset >= 13 else prod(flow.dims[axis:])
        if not 0 <= axis < rank or covered != flow.size:
            raise ModelError(f"{_title(node)}: must be over all {flow.size} values of a sample; its shape is "
                             f"{_show(flow.dims)}, its axis {axis}")
        return replace(flow, softmax=True)

    def _elementwise(self, node, flow, arguments, attributes):
        operator = node.op_type
        if operator == "Neg":
            return self._fold_in(node, flow, scale=np.array(-1.0))
        if operator == "BatchNormalization":
            if attributes.get("training_mode", 0) or not isinstance(arguments[0], _Flow):
                raise ModelError(f"{_title(node)}: must be exported for inference")
            gain, offset, mean, variance = (value.astype(np.float64) for value in arguments[1:5])
            gain = gain / np.sqrt(variance + attributes.get("epsilon", 1e-5))
            channels = (-1,) + (1,) * (len(flow.dims) - 2)
            return self._fold_in(node, flow, scale=gain.reshape(channels), shift=(offset - mean * gain).reshape(channels))
        left = isinstance(arguments[0], _Flow)
        constant = arguments[1 if left else 0].astype(np.float64)
        if operator == "Mul":
            return self._fold_in(node, flow, scale=constant)
        if operator == "Add":
            return self._fold_in(node, flow, shift=constant)
        if operator == "Sub":
            if left:
                return self._fold_in(node, flow, shift=-constant)
            return self._fold_in(node, flow, scale=np.array(-1.0), shift=constant)
        if not left:
            raise ModelError(f"{_title(node)}: divides a constant by values; only values by a constant is supported")
        return self._fold_in(node, flow, scale=1 / constant)

    def _per_value(self, node, flow, constant):
        """A constant, broadcast as in `flow + constant`, as one number for each value of a sample."""
        rank = max(len(flow.dims), constant.ndim)
        dims = (1,) * (rank - len(flow.dims)) + flow.dims
        shape = (1,) * (rank - constant.ndim) + constant.shape
        if any(have != 1 and have != want for have, want in zip(shape, dims)):
            raise ModelError(f"{_title(node)}: shapes {_show(flow.dims)} and {_show(constant.shape)} do not fit")
        first = _sample_axis(dims, flow.size)
        if constant.size == 1:
            return np.full(flow.size, constant.reshape(-1)[0]), dims
        if first is None or any(size != 1 for size in shape[:first]):
            raise ModelError(f"{_title(node)}: its constant of shape {_show(constant.shape)} differs within the batch; "
                             f"only a scalar or one number for each value of a sample is supported")
        return np.broadcast_to(constant.reshape(shape[first:]), dims[first:]).reshape(-1), dims

    def _fold_in(self, node, flow, scale=None, shift=None):
        """`flow * scale + shift`, folded into the layer before, or kept for the one to come."""
        dims = flow.dims
        if scale is not None:
            scale, dims = self._per_value(node, flow, scale)
        if shift is not None:
            shift, dims = self._per_value(node, flow, shift)
        flow = replace(flow, dims=dims)
        target = flow.open if flow.open else flow
        before = target.bias if flow.open else target.shift
        if scale is not None and before is not None:
            before = before * scale
        after = shift if before is None else before if shift is None else before + shift
        if flow.open:
            weights = flow.open.weights if scale is None else flow.open.weights * scale
            return replace(flow, open=replace(flow.open, weights=weights, bias=after))
        if scale is not None and flow.scale is not None:
            scale = flow.scale * scale
        return replace(flow, scale=flow.scale if scale is None else scale, shift=after, waiting=_title(node))

    def _linear(self, node, flow, arguments, attributes):
        gemm = node.op_type == "Gemm"
        if not isinstance(arguments[0], _Flow) or gemm and attributes.get("transA", 0):
            raise ModelError(f"{_title(node)}: weights stand on the left, or a batch is transposed; only "
                             f"values x weights is supported, with values (batch, K)")
        weights = arguments[1].astype(np.float64)
        if gemm and (weights.ndim != 2 or len(flow.dims) != 2):
            raise ModelError(f"{_title(node)}: Gemm needs matrices, not {_show(flow.dims)} and {_show(weights.shape)}")
        if gemm and attributes.get("transB", 0):
            weights = weights.T
        vector = weights.ndim == 1
        extra = max(0, weights.ndim - len(flow.dims))
        if weights.ndim == 0 or prod(weights.shape[:-2]) != 1:
            raise ModelError(f"{_title(node)}: weights of shape {_show(weights.shape)} are not one matrix")
        weights = weights.reshape(-1, 1) if vector else weights.reshape(weights.shape[-2:])
        inputs, outputs = weights.shape
        if not flow.dims or flow.dims[-1] != inputs:
            raise ModelError(f"{_title(node)}: {_show(flow.dims)} and weights of {_show(weights.shape)} do not multiply")
        if flow.dims[-1] != flow.size:
            raise ModelError(f"{_title(node)}: works on parts of a sample ({flow.dims[-1]} of {flow.size} values, shape "
                             f"{_show(flow.dims)}); put a Flatten before it")
        if outputs == 0:
            raise ModelError(f"{_title(node)}: has no outputs")
        if gemm and attributes.get("alpha", 1.0) != 1.0:
            weights = weights * attributes["alpha"]
        # What waits goes into these weights: (x[order] * scale + shift) @ w = x @ w' + shift @ w.
        bias = None if flow.shift is None else flow.shift @ weights
        if flow.scale is not None:
            weights = flow.scale[:, None] * weights
        if flow.order is not None:
            weights = weights[np.argsort(flow.order)]
        layers = (*flow.layers, flow.open.close("none")) if flow.open else flow.layers
        dims = flow.dims[:-1] if vector else (1,) * extra + flow.dims[:-1] + (outputs,)
        name = node.name or node.output[0]
        result = replace(flow, dims=dims, size=outputs, layers=layers, open=_Linear(name, weights, bias),
                         order=None, scale=None, shift=None, waiting="")
        beta = attributes.get("beta", 1.0)
        if gemm and len(arguments) > 2 and arguments[2] is not None and beta != 0:
            addend = arguments[2].astype(np.float64)
            result = self._fold_in(node, result, shift=addend if beta == 1.0 else addend * beta)
        return result


_HANDLERS = {
    **dict.fromkeys(("Identity", "Dropout", "Cast"), "keep"),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), "reshape"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "softmax"),
    **dict.fromkeys(_ELEMENTWISE, "elementwise"),
    **dict.fromkeys(_LINEAR, "linear"),
    "Shape": "shape", "Transpose": "transpose", "Relu": "relu",
}


def _plain(array):
    """Small floats as float32, which holds them exactly and which every numpy function knows."""
    return array.astype(np.float32) if array.dtype in (np.float16, bfloat16) else array


def _show(dims):
    return "(" + ", ".join("batch" if size == _ANY_BATCH else str(int(size)) for size in dims) + ")"


def _sample_axis(dims, size):
    """The first axis that belongs to a sample of this size, all before it being the batch; None if an axis is both."""
    return next((axis for axis in range(len(dims) + 1) if prod(dims[axis:]) == size), None)


def load_network(path):
    """The network in an ONNX file (opset 8 or later; weights in the file or in external ones beside it).

    Raises
    ------
    ModelError
        If the file can't be read, or holds more than a chain of dense layers.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}; name an ONNX file") from None
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError:
        raise ModelError(f"{path}: not an ONNX model, or a damaged or truncated one; export it again") from None
    try:
        if not model.HasField("graph") or not model.graph.node:
            raise ModelError("no graph in it: not an ONNX model, or a truncated one; export it again")
        if model.functions:
            model = _without_functions(model)
        flow, shape = _read(model, path.parent)
    except ModelError as error:
        raise ModelError(_inline(f"{path}: {error}", 1000)) from None
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return Network(name=path.stem, input_size=prod(shape), layers=flow.layers, softmax=flow.softmax, input_shape=shape,
                   preprocess=metadata.get("preprocess"))


def _read(model, folder):
    try:
        return _Reader(model, folder).read()
    except _BatchOfOne:
        # Some exporters leave the batch open at the input, and fix it at 1 in a Reshape.
        try:
            return _Reader(model, folder, batch=1).read()
        except ModelError:
            pass
        raise


def _without_functions(model):
    from onnx.inliner import inline_local_functions
    try:
        return inline_local_functions(model)
    except Exception as error:              # whatever the library makes of a damaged or recursive function
        raise ModelError(f"its local functions can't be inlined: {_inline(error)}") from None

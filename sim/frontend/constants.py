"""Constants of an ONNX model: tensors that are stored in the file or in external files, and constant folding of nodes."""

import warnings

import numpy as np
from onnx import TensorProto, ValueInfoProto, external_data_helper, helper, numpy_helper

from ..golden.arithmetic import bfloat16
from ..ir.errors import ModelError
from .constant_sizes import ROOM, check_size
from .index.values import FLOATS, INTEGERS, show
from .messages import inline, title, unsupported
from .registry import CONSTANTS, ONNX, OPERATORS, register

__all__ = ["read_constant", "fold_constants"]

register(
    (
        "Constant",
        "ConstantOfShape",
        "And",
        "Ceil",
        "Cos",
        "CumSum",
        "DequantizeLinear",
        "Floor",
        "If",  # with a constant condition; see sim.frontend.branches
        "Mod",
        "Or",
        "Range",
        "ReduceL2",
        "ReduceMin",
        "ReduceProd",
        "ScatterND",
        "Sign",
        "Sin",
        "Tile",
        "Trilu",
        "Xor",
    ),
    None,
    CONSTANTS,
)


#: Types of 8 and 4 bits that have no type of numpy's own; the package `onnx` reads them as types of ml_dtypes.
_SMALL = [
    getattr(TensorProto, name)
    for name in ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E8M0", "FLOAT4E2M1", "INT4", "UINT4")
    if hasattr(TensorProto, name)
]


def read_constant(tensor, what, folder):
    """Returns the values of a stored tensor as an array. `folder` has the external data. `what` describes the tensor in error
    messages."""
    # onnx and numpy raise various errors for a damaged tensor; the model is at fault in each case.
    try:
        if external_data_helper.uses_external_data(tensor):
            loaded = TensorProto()
            loaded.CopyFrom(tensor)
            with warnings.catch_warnings(action="ignore"):  # they only repeat text of the file
                external_data_helper.load_external_data_for_tensor(loaded, str(folder))
            tensor = loaded
        if tensor.data_type not in (*FLOATS, *INTEGERS, *_SMALL):
            kinds = {number: kind for kind, number in TensorProto.DataType.items()}
            raise ModelError(
                f"{what} has the type {kinds.get(tensor.data_type, tensor.data_type)}; supported are "
                f"float32, float64, float16, bfloat16, integers, and the formats of 8 and 4 bits"
            )
        return _plain(numpy_helper.to_array(tensor))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what} cannot be read: {inline(error)}") from None


def fold_constants(step, folder, room=ROOM):
    """Evaluates a :class:`sim.frontend.index.values.Step` whose inputs are all constant. Returns the list of outputs. `folder`
    has the external data of the model. Raises ModelError if the outputs would take more than `room` bytes."""
    node, arguments, opset = step.node, step.arguments, step.opset
    if node.domain not in ONNX or not OPERATORS[node.op_type].on_constants:
        raise unsupported(node, "is not supported on constants")
    if node.op_type == "Constant":
        ((key, value),) = step.attributes.items()
        if key == "value":
            return [read_constant(value, title(node), folder)]
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        if key not in kinds:
            raise ModelError(f"{title(node)}: {key} is not supported; use a tensor")
        return [np.array(value, dtype=kinds[key])]
    check_size(step, room)
    if node.op_type == "DequantizeLinear":
        return [_dequantized(step, *arguments)]
    from onnx.reference import ReferenceEvaluator  # slow to import, and seldom needed

    inputs = {name: value for name, value in zip(node.input, arguments) if name}
    graph = helper.make_graph(
        [node],
        "fold",
        [ValueInfoProto(name=name) for name in inputs],
        [ValueInfoProto(name=name) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    outputs = iter(ReferenceEvaluator(model).run(None, inputs))
    return [_plain(np.asarray(next(outputs))) if name else None for name in node.output]


def _dequantized(step, values, scale, zero=None):
    """Returns (values - zero) * scale, as DequantizeLinear defines it. `scale` and `zero` are single numbers, or have one number
    for each index along an axis, or for each block of indices. The package `onnx` can compute this only for opset 19 or later."""
    if zero is not None and (zero.shape != scale.shape or zero.dtype != values.dtype):
        raise ModelError(f"{step.title}: its zero point, {zero.dtype} {show(zero.shape)}, does not fit its scale and values")
    axis, rank = step.attributes.get("axis", 1), values.ndim
    along = values.shape[axis] if step.opset >= 13 and -rank <= axis < rank else None
    if block := step.attributes.get("block_size", 0):
        blocks = [-(-size // block) if place == axis % rank else size for place, size in enumerate(values.shape)]
        fits = along is not None and block > 0 and list(scale.shape) == blocks
    else:
        fits = scale.ndim <= 1 and (scale.size == 1 or len(scale) == along)
    if not fits:
        of = f"one for each of axis {axis}" if not block else f"one for each block of {block} of axis {axis}"
        raise ModelError(f"{step.title}: its scale of {show(scale.shape)} is neither one number nor {of} of {show(values.shape)}")

    def spread(numbers):
        if block:
            return np.repeat(numbers, block, axis).take(range(along), axis)
        return numbers.reshape([-1 if numbers.size > 1 and place == axis % rank else 1 for place in range(rank)])

    if values.dtype.kind in "iu":
        values = values.astype(np.int64)
    whole = values if zero is None else values - spread(zero.astype(values.dtype))
    return whole.astype(np.float32) * spread(scale.astype(np.float32))


def _plain(array):
    """Returns the array, converted to float32 or to integers of 8 bits if its type is smaller than these. The conversion is
    exact. It is needed because some numpy functions do not accept the small types."""
    if array.dtype in (np.float16, bfloat16) or array.dtype.name.startswith("float") and array.dtype.itemsize == 1:
        return array.astype(np.float32)
    return array.astype({"int4": np.int8, "uint4": np.uint8}.get(array.dtype.name, array.dtype), copy=False)

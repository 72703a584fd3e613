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
        if tensor.data_type not in (*FLOATS, *INTEGERS):
            kinds = {number: kind for kind, number in TensorProto.DataType.items()}
            raise ModelError(
                f"{what} has the type {kinds.get(tensor.data_type, tensor.data_type)}; supported are "
                f"float32, float64, float16, bfloat16 and integers"
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
    for each index along an axis. The package `onnx` can compute this only for opset 19 or later."""
    axis, rank = step.attributes.get("axis", 1), values.ndim
    along = values.shape[axis] if step.opset >= 13 and -rank <= axis < rank else None
    if step.attributes.get("block_size", 0) or scale.ndim > 1 or scale.size != 1 and len(scale) != along:
        raise ModelError(
            f"{step.title}: its scale of {show(scale.shape)} is neither one number nor one for each of axis {axis} of "
            f"{show(values.shape)}"
        )
    if zero is not None and (zero.shape != scale.shape or zero.dtype != values.dtype):
        raise ModelError(f"{step.title}: its zero point, {zero.dtype} {show(zero.shape)}, does not fit its scale and values")
    shape = [-1 if scale.size > 1 and place == axis % rank else 1 for place in range(rank)]
    whole = values.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(shape))
    return whole.astype(np.float32) * scale.astype(np.float32).reshape(shape)


def _plain(array):
    """Returns the array, converted to float32 if its type is float16 or bfloat16. The conversion is exact. It is needed because
    some numpy functions do not accept the small types."""
    return array.astype(np.float32) if array.dtype in (np.float16, bfloat16) else array

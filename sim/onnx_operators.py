"""What each ONNX operator does to a :class:`.onnx_flow.Flow`."""

from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto, helper

from .network import ModelError
from .onnx_flow import (ANY_BATCH, ELEMENTWISE, FLOATS, FUSED, INTEGERS, LINEAR, ML, SHAPE, SUPPORTED, BatchFixed, Flow, Linear,
                        sample_axis, show, unsupported)

__all__ = ["apply"]


def apply(step):
    """The value of a node that a Flow goes into."""
    flow = next(value for value in step.arguments if isinstance(value, Flow))
    if sum(isinstance(value, Flow) for value in step.arguments) > 1:
        raise ModelError(f"{step.title}: joins two branches; only a chain of layers is supported, "
                         f"{', '.join(ELEMENTWISE[:4])} with a constant")
    if step.operator == "Scaler" and not (flow.label or flow.softmax):
        offset, scale = (np.array(step.attributes[key], dtype=np.float64) for key in ("offset", "scale"))
        return _fold_in(step, replace(flow, integer=False), scale=scale, shift=-offset * scale)
    if step.operator in ("ArgMax", *ML[1:]):
        return replace(flow, label=True)
    if flow.label:
        if step.operator in SHAPE and step.operator != "Shape":
            return flow
        raise ModelError(f"{step.title}: nothing may come after ArgMax")
    if step.operator not in (*SUPPORTED, FUSED):
        raise unsupported(step.node)
    if flow.softmax and step.operator not in SHAPE:
        raise ModelError(f"{step.title}: nothing may come after Softmax, which is left out; remove it")
    if flow.integer and step.operator not in SHAPE:
        raise ModelError(f"{step.title}: works on integers; put a Cast to float before it")
    if step.operator == "CastLike" and not isinstance(step.arguments[0], Flow):
        return step.arguments[0]
    if step.operator in SHAPE and not isinstance(step.arguments[0], Flow):
        raise ModelError(f"{step.title}: its shape must be constant")
    return _HANDLERS[step.operator](step, flow)


# Shapes

def _keep(step, flow):
    if step.operator == "Dropout" and len(step.arguments) > 2 and step.arguments[2] is not None and step.arguments[2].any():
        raise ModelError(f"{step.title}: must be exported for inference, not for training")
    if step.operator in ("Identity", "Dropout"):
        return flow
    if step.operator == "CastLike":
        kind = helper.np_dtype_to_tensor_dtype(step.arguments[1].dtype)
    else:
        kind = step.attributes["to"]
    if kind in INTEGERS and not flow.integer:
        raise ModelError(f"{step.title}: a Cast to integers is not supported; remove it")
    if kind not in (*FLOATS, *INTEGERS):
        raise ModelError(f"{step.title}: a Cast to this type is not supported; use float32")
    if kind in INTEGERS and kind not in (TensorProto.INT32, TensorProto.INT64):
        raise ModelError(f"{step.title}: a Cast to small integers is not supported; use float32")
    return replace(flow, integer=kind in INTEGERS)


def _shape(step, flow):
    start, end = step.attributes.get("start", 0), step.attributes.get("end")
    return np.array(flow.dims[start:end], dtype=np.int64)


def _reshape(step, flow):
    dims, operator = flow.dims, step.operator
    fixed = None                # the batch, if it is written out
    if operator == "Flatten":
        axis = step.attributes.get("axis", 1)
        axis += len(dims) if axis < 0 else 0
        target = [prod(dims[:axis]), prod(dims[axis:])]
    elif operator == "Reshape":
        shape = [int(size) for size in step.arguments[1].reshape(-1)]
        zero = step.attributes.get("allowzero", 0)
        target = [dims[i] if size == 0 and not zero else size for i, size in enumerate(shape)]
        if target.count(-1) > 1:
            raise ModelError(f"{step.title}: two open sizes in {show(shape)}")
        if -1 in target:
            fixed = target[0]
            target[target.index(-1)] = prod(dims) // max(1, -prod(target))
    else:
        axes = step.attributes.get("axes")
        if axes is None and len(step.arguments) > 1 and step.arguments[1] is not None:
            axes = [int(axis) for axis in step.arguments[1].reshape(-1)]
        if operator == "Squeeze":
            axes = [axis for axis, size in enumerate(dims) if size == 1] if axes is None else axes
            axes = {axis % len(dims) for axis in axes}
            target = [size for axis, size in enumerate(dims) if axis not in axes]
        else:
            rank = len(dims) + len(axes)
            axes, rest = {axis % rank for axis in axes}, iter(dims)
            target = [1 if axis in axes else next(rest) for axis in range(rank)]
    fits = prod(target) == prod(dims) and min(target, default=1) > 0
    mixed = sample_axis(target, flow.size) is None and target[:1] < [ANY_BATCH]
    if not fits or mixed:
        raise BatchFixed(f"{step.title}: shape {show(dims)} can't become {show(target)}",
                         fixed or (target[0] if fits else prod(target) // flow.size))
    return replace(flow, dims=tuple(target))


def _transpose(step, flow):
    axes = list(step.attributes.get("perm", range(len(flow.dims))[::-1]))
    if sorted(axes) != list(range(len(flow.dims))):
        raise ModelError(f"{step.title}: perm {axes} does not fit the shape {show(flow.dims)}")
    target = tuple(flow.dims[axis] for axis in axes)
    # Axes of size 1 may go anywhere.
    kept = [axis for axis, size in enumerate(flow.dims) if size != 1]
    moved = [kept.index(axis) for axis in axes if axis in kept]
    if moved == sorted(moved):
        return replace(flow, dims=target)
    sizes = tuple(flow.dims[axis] for axis in kept)
    first = sample_axis(sizes, flow.size)
    if first is None or moved[:first] != list(range(first)):
        raise ModelError(f"{step.title}: moves the batch; only a sample's own axes may be transposed")
    inside = [axis - first for axis in moved[first:]]
    order = np.arange(flow.size).reshape(sizes[first:]).transpose(inside).reshape(-1)
    if flow.open:
        bias = None if flow.open.bias is None else flow.open.bias[order]
        return replace(flow, dims=target, open=replace(flow.open, weights=flow.open.weights[:, order], bias=bias))
    return replace(flow, dims=target, waiting=step.title,
                   order=order if flow.order is None else flow.order[order],
                   scale=None if flow.scale is None else flow.scale[order],
                   shift=None if flow.shift is None else flow.shift[order])

# Values


def _relu(step, flow):
    if flow.open:
        return replace(flow, layers=(*flow.layers, flow.open.close("relu")), open=None)
    if flow.layers and flow.layers[-1].function == "relu" and not flow.waiting:
        return flow
    raise ModelError(f"{step.title}: must come after a layer ({' or '.join(LINEAR)}, with or without Add)")


def _clip(step, flow):
    low, high = (step.attributes.get(key) if step.opset < 11 else constant
                 for key, constant in zip(("min", "max"), (*step.arguments[1:3], None, None)))
    if low is None or low != 0 or high is not None and high < np.finfo(np.float32).max:
        raise ModelError(f"{step.title}: is only supported as a Relu, from 0 to no bound, not from {low} to {high}")
    return _relu(step, flow)


def _max(step, flow):
    if len(step.arguments) != 2 or any(value.any() for value in step.arguments if value is not flow):
        raise ModelError(f"{step.title}: is only supported as a Relu, of values and 0")
    zeros = next(value for value in step.arguments if value is not flow)
    return _relu(step, replace(flow, dims=_per_value(step, flow, zeros)[1]))


def _softmax(step, flow):
    rank = len(flow.dims)
    axis = step.attributes.get("axis", -1 if step.opset >= 13 else 1)
    axis += rank if axis < 0 else 0
    # Before opset 13 everything from the axis on was taken together.
    covered = flow.dims[axis] if step.opset >= 13 else prod(flow.dims[axis:])
    if not 0 <= axis < rank or covered != flow.size:
        raise ModelError(f"{step.title}: must be over all {flow.size} values of a sample; its shape is "
                         f"{show(flow.dims)}, its axis {axis}")
    return replace(flow, softmax=True)


def _elementwise(step, flow):
    operator = step.operator
    if operator == "Neg":
        return _fold_in(step, flow, scale=np.array(-1.0))
    if operator == "BatchNormalization":
        if step.attributes.get("training_mode", 0) or not isinstance(step.arguments[0], Flow):
            raise ModelError(f"{step.title}: must be exported for inference")
        gain, offset, mean, variance = (value.astype(np.float64) for value in step.arguments[1:5])
        gain = gain / np.sqrt(variance + step.attributes.get("epsilon", 1e-5))
        channels = (-1,) + (1,) * (len(flow.dims) - 2)
        return _fold_in(step, flow, scale=gain.reshape(channels), shift=(offset - mean * gain).reshape(channels))
    left = isinstance(step.arguments[0], Flow)
    constant = step.arguments[1 if left else 0].astype(np.float64)
    if operator == "Mul":
        return _fold_in(step, flow, scale=constant)
    if operator == "Add":
        return _fold_in(step, flow, shift=constant)
    if operator == "Sub":
        if left:
            return _fold_in(step, flow, shift=-constant)
        return _fold_in(step, flow, scale=np.array(-1.0), shift=constant)
    if not left:
        raise ModelError(f"{step.title}: divides a constant by values; only values by a constant is supported")
    return _fold_in(step, flow, scale=1 / constant)


def _per_value(step, flow, constant):
    """A constant, broadcast as in `flow + constant`, as one number for each value of a sample."""
    rank = max(len(flow.dims), constant.ndim)
    dims = (1,) * (rank - len(flow.dims)) + flow.dims
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(have != 1 and have != want for have, want in zip(shape, dims)):
        raise ModelError(f"{step.title}: shapes {show(flow.dims)} and {show(constant.shape)} do not fit")
    first = sample_axis(dims, flow.size)
    if constant.size == 1:
        return np.full(flow.size, constant.reshape(-1)[0]), dims
    if first is None or any(size != 1 for size in shape[:first]):
        raise ModelError(f"{step.title}: its constant of shape {show(constant.shape)} differs within the batch; "
                         f"only a scalar or one number for each value of a sample is supported")
    return np.broadcast_to(constant.reshape(shape[first:]), dims[first:]).reshape(-1), dims


def _fold_in(step, flow, scale=None, shift=None):
    """`flow * scale + shift`, folded into the layer before, or kept for the one to come."""
    dims = flow.dims
    if scale is not None:
        scale, dims = _per_value(step, flow, scale)
    if shift is not None:
        shift, dims = _per_value(step, flow, shift)
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
    return replace(flow, scale=flow.scale if scale is None else scale, shift=after, waiting=step.title)


def _linear(step, flow):
    gemm = step.operator in ("Gemm", FUSED)
    if not isinstance(step.arguments[0], Flow) or gemm and step.attributes.get("transA", 0):
        raise ModelError(f"{step.title}: weights stand on the left, or a batch is transposed; only "
                         f"values x weights is supported, with values (batch, K)")
    weights = step.arguments[1].astype(np.float64)
    if gemm and (weights.ndim != 2 or len(flow.dims) != 2):
        raise ModelError(f"{step.title}: Gemm needs matrices, not {show(flow.dims)} and {show(weights.shape)}")
    if gemm and step.attributes.get("transB", 0):
        weights = weights.T
    vector = weights.ndim == 1
    extra = max(0, weights.ndim - len(flow.dims))
    if weights.ndim == 0 or prod(weights.shape[:-2]) != 1:
        raise ModelError(f"{step.title}: weights of shape {show(weights.shape)} are not one matrix")
    weights = weights.reshape(-1, 1) if vector else weights.reshape(weights.shape[-2:])
    inputs, outputs = weights.shape
    if not flow.dims or flow.dims[-1] != inputs:
        raise ModelError(f"{step.title}: {show(flow.dims)} and weights of {show(weights.shape)} do not multiply")
    if flow.dims[-1] != flow.size:
        raise ModelError(f"{step.title}: works on parts of a sample ({flow.dims[-1]} of {flow.size} values, shape "
                         f"{show(flow.dims)}); put a Flatten before it")
    if outputs == 0:
        raise ModelError(f"{step.title}: has no outputs")
    if gemm and step.attributes.get("alpha", 1.0) != 1.0:
        weights = weights * step.attributes["alpha"]
    # What waits goes into these weights: (x[order] * scale + shift) @ w = x @ w' + shift @ w.
    bias = None if flow.shift is None else flow.shift @ weights
    if flow.scale is not None:
        weights = flow.scale[:, None] * weights
    if flow.order is not None:
        weights = weights[np.argsort(flow.order)]
    layers = (*flow.layers, flow.open.close("none")) if flow.open else flow.layers
    dims = flow.dims[:-1] if vector else (1,) * extra + flow.dims[:-1] + (outputs,)
    name = step.node.name or step.node.output[0]
    result = replace(flow, dims=dims, size=outputs, layers=layers, open=Linear(name, weights, bias),
                     order=None, scale=None, shift=None, waiting="")
    beta = step.attributes.get("beta", 1.0)
    if gemm and len(step.arguments) > 2 and step.arguments[2] is not None and beta != 0:
        addend = step.arguments[2].astype(np.float64)
        result = _fold_in(step, result, shift=addend if beta == 1.0 else addend * beta)
    return result


def _fused(step, flow):
    """onnxruntime's optimiser: Gemm and what comes after it in one."""
    function = step.attributes.get("activation", b"").decode()
    if function not in ("", "Relu"):
        raise ModelError(f"{step.title}: its activation {function} is not supported; Relu is")
    result = _linear(step, flow)
    return _relu(step, result) if function else result


def _einsum(step, flow):
    """A matrix product in Einstein's notation, such as bk,kn->bn; either operand may come first."""
    left, arrow, result = step.attributes["equation"].decode().replace(" ", "").partition("->")
    terms = dict(zip(map(id, step.arguments), left.split(",")))
    weights = next((value for value in step.arguments if value is not flow), np.empty(0))
    values, matrix = terms[id(flow)], terms.get(id(weights), "")
    inner, outer = values[-1:], result[-1:]
    fits = arrow and left.count(",") == 1 and len({*values}) == len(values) and result == values[:-1] + outer
    if not fits or outer in values or matrix not in (inner + outer, outer + inner):
        raise ModelError(f"{step.title}: {left}{arrow}{result} is not values x weights")
    weights = weights if matrix == inner + outer else weights.T
    return _linear(replace(step, arguments=[flow, weights]), flow)


_HANDLERS = {
    **dict.fromkeys(("Identity", "Dropout", "Cast", "CastLike"), _keep),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Gemm", "MatMul"), _linear), "Einsum": _einsum, FUSED: _fused,
    "Shape": _shape, "Transpose": _transpose, "Relu": _relu, "Clip": _clip, "Max": _max,
}

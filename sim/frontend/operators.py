"""What each ONNX operator does to a :class:`sim.frontend.values.Flow`."""

from dataclasses import replace

from ..fusion.nodes import Unknown
from ..ir.errors import ModelError
from . import dense, elementwise, reshapes, shapes, windows
from .expressions import recognise, unknown
from .tensor_formulas import ELEMENTS, formulas_of
from .values import LOWEST, ML, PARTS, Flow, show, unsupported

__all__ = ["apply"]

_SEVERAL = ("Add", "Sub", "Mul", "Sum", "Concat", "CastLike")       # of more than one tensor
_CONSTANT_SHAPE = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split", "Pad")


def apply(step):
    """The values of a node that a Flow goes into, a list."""
    bare = any(value.bare for value in step.arguments if isinstance(value, Flow))
    if bare:
        _check_bare(step)
    # Gemm wants two axes, so from there on there is more than one sample.
    return [replace(value, bare=bare and step.operator != "Gemm") if isinstance(value, Flow) and bare else value
            for value in _apply(step)]


def _check_bare(step):
    """Refuses what means something else for one sample, if a Squeeze has removed the batch's axis then, so that all others count
    otherwise from the first on."""
    operator, rank = step.operator, max(len(value.dims) for value in step.arguments if isinstance(value, Flow))
    axis = step.attributes.get("axis", 1 if operator.endswith("Softmax") and step.opset < 13 else -1)
    copies = operator == "Reshape" and not isinstance(step.arguments[1], Flow) and (0, 0) in reshapes.pairs(step)
    if operator not in _FROM_THE_END or copies or axis not in (-1, rank - 1):
        raise ModelError(f"{step.title}: comes after a Squeeze without axes, which removes the batch too if there is one sample; "
                         f"give the Squeeze its axes")


def _apply(step):
    flow = next(value for value in step.arguments if isinstance(value, Flow))
    operator = step.operator
    if operator in ("ArgMax", *ML[1:]):
        return [_label(step, flow)]
    if flow.label:
        if operator in _HANDLERS and _HANDLERS[operator] in (shapes.keep, reshapes.reshape, shapes.transpose):
            return [flow]
        raise ModelError(f"{step.title}: nothing may come after ArgMax")
    if operator not in _HANDLERS and operator not in PARTS:
        raise unsupported(step.node)
    if operator == "CastLike" and not isinstance(step.arguments[0], Flow):
        return [shapes.cast_like(step, flow)]
    if operator in _CONSTANT_SHAPE and not isinstance(step.arguments[0], Flow):
        raise ModelError(f"{step.title}: its shape must be constant")
    handler = _HANDLERS.get(operator)
    if operator != "MaxPool" and any((value.index == LOWEST).any() for value in step.arguments if isinstance(value, Flow)):
        raise ModelError(f"{step.title}: its input is padded with the lowest number, which only MaxPool can read")
    shape_only = handler is not None and handler.__module__ in (shapes.__name__, reshapes.__name__)
    if flow.integer and not shape_only and operator != "Scaler":
        raise ModelError(f"{step.title}: works on integers; put a Cast to float before it")
    if operator not in ELEMENTS:
        if sum(isinstance(value, Flow) for value in step.arguments) > 1 and operator not in _SEVERAL:
            raise ModelError(f"{step.title}: joins two branches; that is only supported of {', '.join(_SEVERAL)}")
        result = handler(step, flow)
        return [replace(value, formulas={}, woven=False) if isinstance(value, Flow) else value
                for value in (result if isinstance(result, list) else [result])]
    if shape_only:
        result = handler(step, flow)
        return [replace(result, formulas=formulas_of(step, result))]
    return [_element(step, flow, handler)]


def _element(step, flow, handler):
    """What may be a part of a function that is written out: the function if it is complete, else what can be done by itself."""
    flows = [value for value in step.arguments if isinstance(value, Flow)]
    partial = step.operator in PARTS or step.operator == "Div" and step.arguments[1] is flow or any(
        isinstance(value.source, Unknown) for value in flows)
    woven = partial or len(flows) > 1 or any(value.woven for value in flows)
    if woven:
        result = unknown(step)
        found = recognise(step, result)
        if found is not None:
            return replace(found, formulas=result.formulas, woven=True)
    alone = len(flows) == 1 or step.operator in _SEVERAL
    if alone and not partial:
        result = handler(step, flow)
        result = replace(result, formulas=formulas_of(step, result))
    return replace(result, woven=woven)


def _label(step, flow):
    axis = step.attributes.get("axis", 0)
    if step.operator == "ArgMax":
        axis %= len(flow.dims)
        if flow.dims[axis] != flow.size or axis == flow.batch:
            raise ModelError(f"{step.title}: must be over all {flow.size} values of a sample; its shape is {show(flow)}, "
                             f"its axis {axis}")
    return replace(flow, label=True)


#: Operators that do the same to a tensor without its first axis, if that has a size of 1.
_FROM_THE_END = (
    "Reshape", "Identity", "Dropout", "Cast", "CastLike", "Gemm", "FusedGemm", "MatMul", "Softmax", "LogSoftmax", "ArgMax",
    "Add", "Sub", "Mul", "Div", "Neg", "Sum", "Relu", "LeakyRelu", "PRelu", "Clip", "Max", "Min", "Sigmoid", "Tanh", "Gelu",
    "HardSigmoid", "HardSwish", "Elu", "Selu", "Mish", "Softplus", "Softsign", "Exp", "Abs", "Erf",
    *(name for name in PARTS if not name.startswith("Reduce")))

_HANDLERS = {
    **dict.fromkeys(("Identity", "Dropout", "Cast", "CastLike"), shapes.keep),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), reshapes.reshape),
    **dict.fromkeys(("Shape", "Size"), reshapes.shape_of),
    "Transpose": shapes.transpose, "Expand": reshapes.expand, "Slice": shapes.cut, "Split": shapes.split, "Gather": shapes.gather,
    "Pad": shapes.pad, "Concat": shapes.concat,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Neg", "Sum", "BatchNormalization", "Scaler"), elementwise.elementwise),
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Clip", "Max", "Min", "Sigmoid", "Tanh", "Gelu", "HardSigmoid", "HardSwish",
                     "Elu", "Selu", "Mish", "Softplus", "Softsign", "Exp", "Abs", "Erf"), elementwise.function),
    **dict.fromkeys(("Softmax", "LogSoftmax"), elementwise.softmax),
    **dict.fromkeys(("Gemm", "MatMul"), dense.linear), "Einsum": dense.einsum, "FusedGemm": dense.fused,
    **dict.fromkeys(("Conv", "FusedConv"), windows.convolution),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), windows.pool),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceSum"), windows.reduce),
}

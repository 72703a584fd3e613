"""Checks of a node's attributes and constant inputs against ONNX' definition, once the shapes of its inputs are known. Axes
exist and are distinct, sizes add up, and the shapes of parameters fit. :mod:`sim.frontend.validity.nodes` has the checks that do
not need shapes.

Handlers may rely on these checks.
"""

from math import prod

import numpy as np

from ...data.printable import printable
from ...ir.errors import ModelError
from ..batch import Sizes
from ..index.values import BatchFixed, SymbolicTensor, show

__all__ = ["check_ranges"]

#: Operators with one axis: its default. None: it is required, which :mod:`sim.frontend.validity.nodes` has checked.
_AXIS = {"Softmax": -1, "LogSoftmax": -1, "ArgMax": 0, "Concat": None, "Split": 0, "Gather": 0, "Flatten": 1}
#: Inputs that are lists: operator -> (their positions, the least number of axes).
_LISTS = {
    "Pad": ((1, 3), 1),
    "Slice": ((1, 2, 3, 4), 1),
    "Reshape": ((1,), 1),
    "Expand": ((1,), 1),
    "Split": ((1,), 1),
    "Tile": ((1,), 1),
    "ConstantOfShape": ((0,), 1),
    "Squeeze": ((1,), 0),
    "Unsqueeze": ((1,), 0),
}
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceSum", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp")


def _dims(value):
    """Returns the shape of a value; None marks an open batch size."""
    if not isinstance(value, SymbolicTensor):
        return getattr(value, "values", value).shape
    return tuple(
        None if axis == value.batch and value.is_open else size for axis, size in enumerate(value.shape(value.samples or 1))
    )


def _refuse(step, why):
    raise ModelError(f"{step.title}: {why}")


def check_ranges(step):
    """Raises an error for a :class:`sim.frontend.index.values.Step` for which ONNX does not define a result."""
    operator = step.operator
    if operator != "Concat" and any(isinstance(value, Sizes) for value in step.arguments[1:]):
        return  # these may only give shapes, which the handlers check
    if step.arguments and step.arguments[0] is not None:
        dims = _dims(step.arguments[0])
        positions, least = ((1,), 1) if operator in _REDUCTIONS else _LISTS.get(operator, ((), 0))
        for value in map(step.argument, positions):
            if isinstance(value, np.ndarray) and not least <= value.ndim <= 1:
                _refuse(step, f"one of its lists has the shape {show(value.shape)}")
        if operator in _AXIS:
            default = 1 if operator.endswith("Softmax") and step.opset < 13 else _AXIS[operator]
            _check_axis(step, dims, step.attributes.get("axis", default), beyond=operator == "Flatten")
        if operator in _REDUCTIONS:
            _check_axes(step, dims, step.integers("axes", 1))
        if operator in _CHECKS:
            _CHECKS[operator](step, dims)


def _check_axis(step, dims, axis, beyond=False):
    rank = len(dims)
    if not -rank <= axis < rank + beyond:
        _refuse(step, f"axis {axis} is out of range for the shape {show(dims)}")


def _check_axes(step, dims, axes):
    for axis in axes or ():
        _check_axis(step, dims, axis)
    if axes is not None and len({axis % len(dims) for axis in axes}) < len(axes):
        _refuse(step, f"its axes {axes} name one axis of {show(dims)} twice")


def _squeeze(step, dims):
    axes = step.integers("axes", 1)
    _check_axes(step, dims, axes)
    for axis in axes or ():
        if dims[axis] not in (1, None):
            _refuse(step, f"axis {axis} of {show(dims)} is not 1")


def _unsqueeze(step, dims):
    axes = step.integers("axes", 1)
    if axes is None:
        _refuse(step, "its axes are missing")
    rank = len(dims) + len(axes)
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) < len(axes):
        _refuse(step, f"its axes {axes} are not {len(axes)} of the {rank} of the result")


def _slice(step, dims):
    starts, ends = step.integers("starts", 1), step.integers("ends", 2)
    axes, steps = step.integers("axes", 3), step.integers("steps", 4)
    if len({len(values) for values in (starts, ends, axes, steps) if values is not None}) > 1:
        _refuse(step, f"starts {starts}, ends {ends}, axes {axes} and steps {steps} have different lengths")
    if axes is None and len(starts) > len(dims):
        _refuse(step, f"cuts {len(starts)} axes of {show(dims)}")
    _check_axes(step, dims, axes)
    if 0 in (steps or ()):
        _refuse(step, f"one of its steps {steps} is 0")


def _pad(step, dims):
    pads, axes = step.integers("pads", 1), step.integers("axes", 3)
    _check_axes(step, dims, axes)
    axes = range(len(dims)) if axes is None else axes
    if len(pads) != 2 * len(axes):
        _refuse(step, f"pads {pads} do not fit the shape {show(dims)}")
    if isinstance(step.arguments[0], np.ndarray) and min(pads, default=0) < 0:
        _refuse(step, f"pads a constant by {pads}; negative pads are not supported, cut with a Slice")
    mode = step.attributes.get("mode", b"constant").decode()
    for axis, before, after in zip(axes, pads, pads[len(axes) :]):
        if dims[axis] is None:
            continue
        size = dims[axis] + min(before, 0) + min(after, 0)
        most = {"reflect": size - 1, "wrap": size, "edge": np.inf if size > 0 else 0}.get(mode, np.inf)
        if max(before, after) > most or size < 0:
            _refuse(
                step,
                f"pads axis {axis} of {show(dims)} by {before} and {after}, which is too much for mode {mode}"
                if size >= 0
                else f"cuts more from axis {axis} of {show(dims)} than there is",
            )


def _split(step, dims):
    axis, parts = step.attributes.get("axis", 0), len(step.node.output)
    sizes, size, number = step.integers("split", 1), dims[axis], step.attributes.get("num_outputs")
    if number is not None and (sizes is not None or number != parts):
        _refuse(step, f"num_outputs is {number}, though {'sizes are given too' if sizes is not None else f'it has {parts}'}")
    if sizes is None and step.opset >= 18 and number is None:
        _refuse(step, "neither sizes nor num_outputs are given")
    if size is None:
        return
    if sizes is None and step.opset < 18 and size % parts:
        _refuse(step, f"axis {axis} of {show(dims)} cannot be split into {parts} equal parts")
    if sizes is not None and (len(sizes) != parts or sum(sizes) != size or min(sizes) < 0):
        _refuse(step, f"axis {axis} of {show(dims)} cannot be split into {sizes} for {parts} outputs")


def _gather(step, dims):
    axis, indices = step.attributes.get("axis", 0), step.arguments[1]
    if dims[axis] is None or not isinstance(indices, np.ndarray) or not indices.size:
        return
    if not -dims[axis] <= indices.min() <= indices.max() < dims[axis]:
        _refuse(step, f"picks {indices.min()} to {indices.max()} along axis {axis} of {show(dims)}")


def _concat(step, dims):
    rank = len(dims)
    axis = step.attributes["axis"] % rank
    for value in map(_dims, step.arguments):
        if len(value) != rank or any(
            one != two and None not in (one, two) for at, (one, two) in enumerate(zip(dims, value)) if at != axis
        ):
            _refuse(step, f"shapes {', '.join(show(_dims(one)) for one in step.arguments)} do not fit along axis {axis}")


def _reshape(step, dims):
    shape = step.integers("shape", 1)
    if shape is not None:
        zero = step.attributes.get("allowzero", 0)
        if min(shape, default=0) < -1 or shape.count(-1) > 1 or zero and -1 in shape and 0 in shape:
            _refuse(step, f"its shape {show(shape)} has two open sizes, or one below -1")
        if not zero and 0 in shape[len(dims) :]:
            _refuse(step, f"its shape {show(shape)} copies an axis that {show(dims)} does not have")
        if isinstance(step.arguments[0], np.ndarray):
            target = [dims[at] if size == 0 and not zero else size for at, size in enumerate(shape)]
            known = prod(size for size in target if size != -1)
            if known != prod(dims) if -1 not in target else not known or prod(dims) % known:
                _refuse(step, f"{show(dims)} cannot become {show(shape)}")


def _normalised(step, dims):
    channels = dims[1] if len(dims) > 1 else 1
    for name, value in zip(("scale", "B", "mean", "var"), step.arguments[1:5]):
        if tuple(_dims(value)) != (channels,):
            _refuse(
                step, f"its input {name} of the shape {show(_dims(value))} is not one number for each channel of {show(dims)}"
            )
    if step.attributes.get("spatial", 1) != 1:
        _refuse(step, "spatial = 0 is not supported")


def _gemm(step, dims):
    addend, weights = step.argument(2), step.arguments[1]
    if len(dims) != 2 or len(_dims(weights)) != 2:
        _refuse(step, f"Gemm needs matrices, not {show(dims)} and {show(_dims(weights))}")
    outputs, inputs = _dims(weights) if step.attributes.get("transB", 0) else _dims(weights)[::-1]
    if isinstance(step.arguments[0], np.ndarray) and isinstance(weights, np.ndarray):
        inner = dims[0 if step.attributes.get("transA", 0) else 1]
        if inner != inputs:
            _refuse(step, f"{show(dims)} and weights of {show(weights.shape)} do not multiply")
    elif isinstance(addend, np.ndarray) and dims[1] == inputs:
        shape = (1, 1, *addend.shape)[-2:]
        if addend.ndim > 2 or shape[1] not in (1, outputs):
            _refuse(step, f"its bias of the shape {show(addend.shape)} does not fit {outputs} outputs")


def _matmul(step, dims):
    weights = _dims(step.arguments[1])
    if not dims or not weights:
        _refuse(step, f"multiplies {show(dims)} and {show(weights)}; matrices or vectors are needed")
    if None not in (dims[-1], weights[-2:][0]) and dims[-1] != weights[-2:][0] and isinstance(step.arguments[1], np.ndarray):
        _refuse(step, f"{show(dims)} and weights of {show(weights)} do not multiply")


def _transpose(step, dims):
    axes = step.attributes.get("perm", range(len(dims)))
    if sorted(axes) != list(range(len(dims))):
        _refuse(step, f"perm {axes} does not fit the shape {show(dims)}")


def _slope(step, dims):
    slope = _dims(step.arguments[1])
    if len(slope) > len(dims):
        _refuse(step, f"its slope of the shape {show(slope)} does not fit {show(dims)}")


def _clip(step, dims):
    for name, bound in (("min", step.argument(1)), ("max", step.argument(2))):
        if bound is not None and any(size != 1 for size in _dims(bound)):
            _refuse(step, f"its bound {name} has the shape {show(_dims(bound))}; it must be one number")


def _dropout(step, dims):
    for name, value in (("ratio", step.argument(1)), ("training_mode", step.argument(2))):
        if value is not None and (isinstance(value, SymbolicTensor) or value.size != 1):
            _refuse(step, f"its {name} of the shape {show(_dims(value))} is not one constant number")
    if step.argument(2) is not None and step.arguments[2].any():
        _refuse(step, "must be exported for inference, not for training")


def _einsum(step, dims):
    terms = step.attributes["equation"].decode("utf-8", "replace").replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(step.arguments):
        _refuse(step, f"its equation has {len(terms)} inputs, but the node has {len(step.arguments)}")
    for term, value in zip(terms, step.arguments):
        if "..." not in term and len(term) != len(_dims(value)):
            _refuse(step, f"its equation has {printable(term, 40)} for an input of {show(_dims(value))}")


def _scaler(step, dims):
    for name in ("offset", "scale"):
        values = step.attributes.get(name)
        if values is None or len(values) not in (1, dims[-1] if dims else 1):
            _refuse(step, f"{name} has {len(values or ())} numbers, for {show(dims)}")


def _recurrent(step, dims):
    """Raises BatchFixed if the input of a recurrent layer has an open batch size, but its initial state is a constant: the shape
    of the constant fixes the batch size."""
    for place, name in ((5, "initial_h"), (6, "initial_c")):
        state = step.argument(place)
        if isinstance(state, np.ndarray) and len(dims) == 3 and dims[1] is None and state.ndim == 3:
            text = f"{step.title}: its {name} of {show(state.shape)} does not fit X of {show(dims)}, of any number of samples"
            raise BatchFixed(text, state.shape[1])


_CHECKS = {
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Pad": _pad,
    "Split": _split,
    "Gather": _gather,
    "Concat": _concat,
    "Reshape": _reshape,
    "BatchNormalization": _normalised,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "MatMul": _matmul,
    "Transpose": _transpose,
    "PRelu": _slope,
    "Clip": _clip,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Scaler": _scaler,
}

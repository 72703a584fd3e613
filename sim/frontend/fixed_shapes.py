"""Shapes of inputs that the user gives, for models that leave sizes open, and values of scalar inputs."""

import numpy as np
from onnx import helper, numpy_helper

from ..data.printable import quoted
from ..ir.errors import ModelError
from .messages import inline

__all__ = ["parse_shapes", "with_shapes"]


def parse_shapes(texts):
    """Returns {input: shape} of texts such as `input=1,3,48,192`, or of None. A number with a point is returned as a float, as
    for `rate=0.5`. Raises ModelError for other texts."""
    shapes = {}
    for text in texts or ():
        name, equals, sizes = text.rpartition("=")
        try:
            shape = float(sizes) if "." in sizes else tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            shape, equals = (), ""
        if not name or not equals:
            raise ModelError(f"shape {inline(text, 80)!r} is not the name of an input and its sizes; write input=1,3,48,192")
        if name in shapes:
            raise ModelError(f"there are two shapes for the input {quoted(name)}; leave one out")
        shapes[name] = shape
    return shapes


def with_shapes(model, shapes):
    """Returns a copy of an `onnx.ModelProto` in which inputs have the shapes of `shapes`, {name: sizes}. A scalar input
    becomes a constant with the given number, such as 16000 or (16000,). Raises ModelError if a shape does not fit the declared
    sizes."""
    copy = type(model)()
    copy.CopyFrom(model)
    stored = {tensor.name for tensor in copy.graph.initializer}
    inputs = {entry.name: entry for entry in copy.graph.input if entry.name not in stored}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ModelError(f"it has no input {quoted(name)}; its inputs are {', '.join(map(quoted, inputs))}")
        if _is_scalar(inputs[name]):
            copy.graph.initializer.append(_constant(inputs[name], shape))
            copy.graph.input.remove(inputs[name])
        else:
            _fix(inputs[name], shape)
    return copy


def _is_scalar(entry):
    return entry.type.tensor_type.HasField("shape") and not entry.type.tensor_type.shape.dim


def _constant(entry, value):
    numbers = np.asarray(value).reshape(-1)
    kind = helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
    if len(numbers) != 1 or numbers.astype(kind)[0] != numbers[0]:
        raise ModelError(
            f"input {quoted(entry.name)} is one number of type {kind}, so it cannot be {value}; give its value, as in "
            f"{inline(entry.name, 80)}=16000"
        )
    return numpy_helper.from_array(numbers.astype(kind).reshape(()), entry.name)


def _fix(entry, shape):
    if np.ndim(shape) != 1:
        raise ModelError(f"input {quoted(entry.name)} is not one number, so it cannot have the value {shape}; give its sizes")
    declared, shape = entry.type.tensor_type, tuple(shape)
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in declared.shape.dim]
    fits = len(dims) == len(shape) and all(have in (None, size) for have, size in zip(dims, shape))
    if declared.HasField("shape") and not fits:
        text = ", ".join("open" if size is None else str(size) for size in dims)
        raise ModelError(f"input {quoted(entry.name)} has the shape ({text}), so it cannot have the shape {shape}")
    if min(shape, default=1) < 1:
        raise ModelError(f"input {quoted(entry.name)} cannot have the shape {shape}: all sizes must be at least 1")
    declared.shape.ClearField("dim")
    for size in shape:
        declared.shape.dim.add().dim_value = size

"""Sizes of constants that nodes compute, known by shape inference of ONNX before a node is evaluated."""

from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from ..ir.errors import ModelError
from .index.values import show

__all__ = ["ROOM", "Room", "check_size"]

#: Bytes that computed constants may take at a time, besides `_ROOM_OF_STORED` for each byte of stored constants.
ROOM = 1 << 25
_ROOM_OF_STORED = 8

_FEW = 64  # numbers up to which an input may be a shape, axes or bounds, on which the shape of the result depends
_ADAPTED = {"PRelu": 1, "Gemm": 2}  # {operator: its first input that is broadcast to the shape of the result}


class Room:
    """The number of bytes that computed constants may still take, `left`, while a graph of `size` bytes is evaluated."""

    def __init__(self, size):
        self.left = ROOM + _ROOM_OF_STORED * size
        self._taken = {}  # name of a computed constant -> its bytes

    def read(self, tensor, array):
        """Adds the room of a stored tensor. The graph's own size contains it unless it is external."""
        if uses_external_data(tensor):
            self.left += _ROOM_OF_STORED * array.nbytes

    def take(self, name, value):
        """Takes the room of the value `name` if it is a constant."""
        if isinstance(value, np.ndarray):
            self._taken[name] = value.nbytes
            self.left -= value.nbytes

    def release(self, name):
        """Returns the room of the value `name` if it is a computed constant."""
        self.left += self._taken.pop(name, 0)


def check_size(step, room):
    """Raises an error if the results of a node with constant inputs would take more than `room` bytes, or too long."""
    results = _results_of(step)
    if None in results:
        raise ModelError(
            f"{step.title}: the shape of its result cannot be inferred from its inputs; store the result in the file"
        )
    need = sum(prod(shape) * kind.itemsize for shape, kind in results)
    if need > room:
        raise ModelError(
            f"{step.title}: makes {prod(results[0][0])} values of constants, which is too large; "
            f"make its inputs smaller, or store the result in the file"
        )
    shapes = [value.shape for value in step.arguments if value is not None]
    for shape in shapes[_ADAPTED[step.operator] :] if step.operator in _ADAPTED else ():
        if np.broadcast_shapes(shape, results[0][0]) != results[0][0]:
            raise ModelError(f"{step.title}: a constant of {show(shape)} does not fit its result of {show(results[0][0])}")
    work, most = _WORK.get(step.operator, (None, 0))
    count = work(step, shapes, results[0][0]) if work else 0
    if count > most:
        raise ModelError(f"{step.title}: takes {count} steps on constants, more than {most}; store the result in the file")


def _results_of(step):
    """Returns `(shape, numpy type)` of each output that has a name, or None in the place of an unknown shape."""
    node, values = step.node, {name: value for name, value in zip(step.node.input, step.arguments) if name}
    model = helper.make_model(
        helper.make_graph(
            [node],
            "sizes",
            [helper.make_tensor_value_info(name, _kind(value), value.shape) for name, value in values.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
            [numpy_helper.from_array(value, name) for name, value in values.items() if value.ndim < 2 and value.size <= _FEW],
        ),
        opset_imports=[helper.make_opsetid("", step.opset)],
    )
    return [_size_of(entry.type.tensor_type) for entry in onnx.shape_inference.infer_shapes(model).graph.output]


def _size_of(kind):
    dims = kind.shape.dim
    known = kind.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims)
    return (tuple(dim.dim_value for dim in dims), helper.tensor_dtype_to_np_dtype(kind.elem_type)) if known else None


def _kind(value):
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def _products(step, shapes, result):
    inner = shapes[0][-1] if step.operator == "MatMul" or not step.attributes.get("transA", 0) else shapes[0][0]
    return prod(result) * inner


def _terms(step, shapes, result):
    """Returns the number of terms of an Einsum: the product of the sizes of its letters. An ellipsis counts once per operand."""
    equation = step.attributes["equation"].decode("utf-8", "replace").replace(" ", "")
    sizes = {}
    for number, (letters, shape) in enumerate(zip(equation.partition("->")[0].split(","), shapes)):
        before, dots, after = letters.partition("...")
        sizes |= dict(zip(before, shape)) | dict(zip(after[::-1], shape[::-1]))
        sizes[number] = prod(shape[len(before) : len(shape) - len(after)]) if dots else 1
    return prod(sizes.values())


def _places(step, shapes, result):
    return prod(shapes[1][:-1])


def _values(step, shapes, result):
    return prod(result)


#: {operator: (number of steps, most steps)} for operators that take more time or memory than their inputs and results.
_WORK = {
    **dict.fromkeys(("MatMul", "Gemm"), (_products, 1 << 34)),
    "Einsum": (_terms, 1 << 34),
    **dict.fromkeys(("GatherND", "ScatterND"), (_places, 1 << 20)),  # in Python, one by one
    **dict.fromkeys(("Erf", "Gelu"), (_values, 1 << 20)),
}

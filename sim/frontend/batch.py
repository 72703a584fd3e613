"""Constant folding of values that depend on an open batch size.

Exporters read the batch size from a tensor (Shape), select it (Gather), combine it with other numbers, and pass it to a Reshape.
In this module the batch size is therefore a symbol: an entry of :class:`Sizes` is a number times a power of the batch size. Two
kinds of operators are evaluated: operators that move entries, and arithmetic operations whose result is known for every batch
size. Any use of the batch size as data, as an index or in a condition is refused.
"""

from dataclasses import dataclass, replace
from functools import partial, reduce
from math import prod

import numpy as np

from ..ir.errors import ModelError
from .constants import fold_constants
from .index.values import FLOATS, SymbolicTensor

__all__ = ["Sizes", "Repeated", "fold_open_constants", "checked"]

# Operators that only move entries: {operator: indices of the inputs whose entries they move}.
_MOVES = {
    **dict.fromkeys(
        ("Identity", "Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose", "Split", "Expand", "Tile"),
        (0,),
    ),
    "Where": (1, 2),
}

_COMPARES = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min", "Where", *_COMPARES)


_OF_EACH = (
    *("Cast", "Identity", "Neg", "Add", "Sub", "Mul", "Div", "MatMul", "Gather", "Squeeze", "Transpose", "Unsqueeze"),
    *("And", "Or", "Xor", "Not", "Where"),
)
_MOST = 1 << 16  # values that depend on the batch size: they are shapes
_RECURRENT = ("GRU", "LSTM", "RNN")  # their constants with a batch axis are states


@dataclass(frozen=True, eq=False)
class Sizes:
    """A constant array that depends on the batch size. Each entry is the number in `values` times the batch size to the power in
    `powers`, an integer array of the same shape."""

    values: np.ndarray
    powers: np.ndarray


@dataclass(frozen=True, eq=False)
class Repeated:
    """A constant array that is repeated along the batch axis. `values` is one repetition. It has size 1 along the axis
    `batch`. `given` is True if the values may be weights, such as a class token, and not only zeros of a first state."""

    values: np.ndarray
    batch: int
    given: bool = False

    def of(self, samples):
        return np.repeat(self.values, samples, self.batch)


def _refused(step, why=""):
    return ModelError(
        f"{step.title}: computes a value from the open batch size{why}; it may only be part of a shape; "
        f"export the model with a fixed batch"
    )


def _settled(values, powers):
    """Returns `values` as a plain array if no entry depends on the batch size. Otherwise returns :class:`Sizes`."""
    powers = np.where(values == 0, 0, np.broadcast_to(powers, values.shape))
    return Sizes(values, powers) if powers.any() else values


def _parts(value):
    return (value.values, value.powers) if isinstance(value, Sizes) else (value, np.zeros(value.shape, np.int64))


def fold_open_constants(step, folder, room):
    """Evaluates a :class:`sim.frontend.index.values.Step` whose inputs are all constant. Some inputs are :class:`Sizes` or
    :class:`Repeated`. Returns the list of outputs. `folder` has the model's external data, and `room` is the number of bytes
    that the outputs may take. Raises ModelError if the result is not known for every batch size."""
    operator, arguments = step.operator, step.arguments

    def folded(constants):
        return fold_constants(replace(step, arguments=constants), folder, room)

    if operator in ("ConstantOfShape", "Expand") and isinstance(arguments[-1], Sizes):
        return [_repeated(step, folded)]
    if operator == "Slice" and isinstance(arguments[0], Repeated):
        return [_sliced(step, folded)]
    if operator == "Shape" and isinstance(arguments[0], Repeated):
        (sizes,) = folded([arguments[0].values])
        (more,) = folded([arguments[0].of(2)])
        return [_settled(sizes, (more > sizes).astype(np.int64))]
    if any(isinstance(value, Repeated) for value in arguments):
        return _of_each(step, folded)
    if operator in ("Shape", "Size"):
        return folded([arguments[0].values])
    if operator == "Concat" or operator in _MOVES:
        return _moved(step, range(len(arguments)) if operator == "Concat" else _MOVES[operator], folded)
    if operator == "Cast":
        return [_cast(step, folded)]
    if operator in ("Floor", "Ceil"):
        return [_whole(step, arguments[0])]
    if operator == "Neg":
        return [_settled(-arguments[0].values, arguments[0].powers)]
    if (
        operator == "ReduceProd"
        and len(arguments) == arguments[0].values.ndim == 1
        and not (step.attributes.get("noop_with_empty_axes", 0) or step.attributes.get("axes", [0]) != [0])
    ):
        keep = bool(step.attributes.get("keepdims", 1))
        return [_settled(arguments[0].values.prod(keepdims=keep), arguments[0].powers.sum(keepdims=keep))]
    if operator in ("Add", "Sub", "Mul", "Div"):
        return [_arithmetic(step, *arguments)]
    if operator in ("Max", "Min"):
        return [reduce(partial(_extreme, step), arguments)]
    if operator in _COMPARES:
        return [_COMPARES[operator](_order(step, *arguments), 0)]
    raise _refused(step)


def _moved(step, places, folded):
    arguments = step.arguments
    if any(isinstance(value, Sizes) for place, value in enumerate(arguments) if place not in places):
        raise _refused(step)
    parts = [_parts(value) if place in places else (value, value) for place, value in enumerate(arguments)]
    return [_settled(values, powers) for values, powers in zip(folded([v for v, _ in parts]), folded([p for _, p in parts]))]


def _whole(step, sizes):
    if (sizes.values != np.floor(sizes.values)).any():
        raise _refused(step)
    return sizes


def _cast(step, folded):
    sizes = step.arguments[0]
    kind = folded([sizes.values])[0].dtype
    if kind not in (np.int32, np.int64, np.float32, np.float64):
        raise _refused(step)
    if step.attributes["to"] not in FLOATS:
        _whole(step, sizes)
    return Sizes(sizes.values.astype(kind), sizes.powers)


def _both(step, one, two):
    """Broadcasts two constants to one shape. Returns `(values of one, powers of one, values of two, powers of two)`."""
    (a, p), (b, q) = _parts(one), _parts(two)
    if prod(np.broadcast_shapes(a.shape, b.shape)) > _MOST:
        raise ModelError(f"{step.title}: makes more than {_MOST} values from the batch size; make its inputs smaller")
    return np.broadcast_arrays(a, p, b, q)


def _arithmetic(step, one, two):
    a, p, b, q = _both(step, one, two)
    operator = step.operator
    if operator == "Mul":
        return _settled(a * b, p + q)
    if operator == "Div":
        # Integer division truncates, so the quotient must be exact if it depends on the batch size.
        if (b == 0).any() or (p < q).any() or a.dtype.kind != "f" and ((p != q) & (a % np.where(b == 0, 1, b) != 0)).any():
            raise _refused(step)
        return _settled(
            a / b if a.dtype.kind == "f" else (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype), p - q
        )
    if ((p != q) & (a != 0) & (b != 0)).any():
        raise _refused(step)
    return _settled(a + b if operator == "Add" else a - b, np.where(a != 0, p, q))


def _order(step, one, two):
    """Compares two constants entry by entry. Returns an array with -1, 0 or 1 where the entry of `one` is smaller, equal or
    larger for every batch size. Raises an error if an order depends on the batch size."""
    parts = a, p, b, q = _both(step, one, two)
    larger, smaller = _above(np.greater, *parts), _above(np.greater, b, q, a, p)
    if ((p != q) & ~larger & ~smaller).any():
        raise _refused(step, ", and so cannot be compared")
    return larger.astype(np.int8) - smaller


def _above(compare, a, p, b, q):
    """Returns a mask of the entries for which `a` times the batch size to the power `p` is above `b` to the power `q`, for every
    batch size. `compare` is np.greater or np.greater_equal."""
    return compare(a, b) & ((p == q) | (p > q) & (a > 0) | (p < q) & (b < 0))


def _extreme(step, one, two):
    """Returns the larger, or for Min the smaller, of two constants entry by entry. The choice must hold for every batch size."""
    parts = a, p, b, q = _both(step, one, two)
    first, second = _above(np.greater_equal, *parts), _above(np.greater_equal, b, q, a, p)
    if not (first | second).all():
        raise _refused(step, ", and so cannot be compared")
    chosen = first if step.operator == "Max" else ~first
    return _settled(np.where(chosen, a, b), np.where(chosen, p, q))


def _repeated(step, folded):
    """Evaluates ConstantOfShape or Expand for a shape in which one size is the batch size. Returns a :class:`Repeated`. `folded`
    evaluates the node for an array of constant inputs."""
    *constants, shape = step.arguments
    axes = np.flatnonzero(shape.powers)
    if (
        len(axes) != 1
        or shape.powers[axes[0]] != 1
        or shape.values[axes[0]] != 1
        or not all(isinstance(value, np.ndarray) for value in constants)
    ):
        raise _refused(step)
    (values,) = folded([*constants, shape.values])
    batch = int(axes[0]) + values.ndim - len(shape.values)
    if values.shape[batch] != 1:
        raise _refused(step)
    return Repeated(values, batch, any(value.size > 1 for value in constants))


def _sliced(step, folded):
    """Evaluates a Slice of a :class:`Repeated` along other axes than the batch, such as the state of one recurrent layer."""
    repeated, *rest = step.arguments
    if not all(value is None or isinstance(value, np.ndarray) for value in rest):
        raise _refused(step)
    axes = step.integers("axes", 3)
    if axes is None:
        axes = range(len(step.integers("starts", 1)))
    if repeated.batch in [axis % repeated.values.ndim for axis in axes]:
        raise _refused(step)
    return replace(repeated, values=folded([repeated.values, *rest])[0])


def _of_each(step, folded):
    """Evaluates an operator of :data:`_OF_EACH`, which computes every sample in the same way. The axis of the samples in the
    results is the one with as many values as samples."""
    if step.operator not in _OF_EACH or any(isinstance(value, Sizes) for value in step.arguments):
        raise _refused(step)
    few, many = (
        folded([value.of(count) if isinstance(value, Repeated) else value for value in step.arguments]) for count in (2, 3)
    )
    made, given = [], any(isinstance(value, Repeated) and value.given for value in step.arguments)
    for one, other in zip(few, many):
        axes = [axis for axis, sizes in enumerate(zip(one.shape, other.shape)) if sizes == (2, 3)]
        if len(axes) != 1 or (first := one.take([0], axes[0])).size * 3 != other.size or (other != first).any():
            raise _refused(step)
        made.append(Repeated(first, axes[0], given))
    return made


def checked(step):
    """Returns the step with its :class:`Repeated` inputs converted to arrays or symbolic tensors, which handlers accept. Raises
    ModelError if the batch size would be used as data or as an index."""
    operator, arguments = step.operator, step.arguments
    tensor = next(value for value in arguments if isinstance(value, SymbolicTensor))
    for place, value in enumerate(arguments):
        if isinstance(value, Sizes) and (operator not in ("Reshape", "Expand") or place != 1):
            raise _refused(step)
    arguments = [_beside(step, value, tensor) if isinstance(value, Repeated) else value for value in arguments]
    return replace(step, arguments=arguments)


def _beside(step, repeated, tensor):
    values = repeated.values
    if values.ndim - repeated.batch != len(tensor.dims) - tensor.batch or tensor.dims[tensor.batch] != 1:
        raise ModelError(f"{step.title}: joins samples with a constant that is repeated along another axis")
    if step.operator in (*_ELEMENTWISE, *_RECURRENT):
        return values
    if step.operator == "Concat" and values.ndim == len(tensor.dims):
        return repeated
    raise _refused(step)

"""Evaluation of ONNX nodes that have a :class:`sim.frontend.index.values.SymbolicTensor` among their inputs."""

from dataclasses import replace

import numpy as np

from ..data.printable import printable, quoted
from ..fusion.nodes import Input, Unknown
from ..ir.errors import ModelError
from .formulas.tensor_formulas import ELEMENTS, formulas_of
from .index.values import LOWEST, SymbolicTensor, hidden, show
from .messages import inline, of_host, unsupported
from .operators import attention, dense, joins, moves, quotients, recurrent, reductions, reshapes, resizing, shapes, windows  # noqa: F401 - they register
from .operators.comparisons import compared
from .operators.expressions import recognise, recognise_slopes, unknown
from .operators.masks import added_masks, truth_values
from .operators.normalization import recognise_normalisation
from .operators.pieces import in_slices
from .registry import CONSTANTS, FINAL, ML, OPERATORS, PARTS, SHAPES, operator, register, supported_operators
from .validity.operator_rules import default_of

__all__ = ["apply", "supported_operators"]

#: Operators whose meaning does not depend on the order of values along the batch's axis.
_ANY_ROWS = (
    *("MatMul", "Gemm", "FusedGemm", "LayerNormalization", "Add", "Sub", "Mul", "Div", "Relu", "Gelu", "Erf", "Tanh", "Sigmoid"),
    *("Identity", "Dropout", "Cast", "Shape", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
)
_GUARDED = ("Softmax", "Add", "Where", "IsNaN")  # their handlers set the guard of a result
_LOGIC = ("Where", "Not", "And", "Or", "Xor")  # on truth values
#: Operators that may follow a sum with minus infinity.
_MASKED = (
    *(
        "Softmax",
        "Add",
        "Mul",
        "Div",
        "Where",
        "Identity",
        "Dropout",
        "Cast",
        "CastLike",
        "Transpose",
        "Slice",
        "Split",
        "Flatten",
        "Reshape",
    ),
    *("Squeeze", "Unsqueeze", "Expand", "Shape", "Size"),
)

_MASKING = ("Add", "Where", "Concat", "Gather", "Pad", "Attention")  # minus infinity masks, or pads
_BOUNDED = ("Clip", "Max", "Min")  # an infinite bound does not bind

# Operators that have a formula, but no handler.
for _name in ELEMENTS:
    _reduces = _name.startswith("Reduce")
    _attributes = ("axes", "keepdims", "noop_with_empty_axes") if _reduces else ()
    register((_name,), None, PARTS, counts_from_end=not _reduces, attributes=_attributes)


def apply(step):
    """Evaluates a node that has a SymbolicTensor among its inputs. Returns the list of its outputs."""
    _check_finite(step)
    bare = any(value.bare for value in step.arguments if isinstance(value, SymbolicTensor))
    if bare:
        _check_bare(step)
    # Gemm takes two axes, so its input has a batch axis, and so have all tensors that depend on its result.
    results = [
        replace(value, bare=bare and step.operator != "Gemm") if isinstance(value, SymbolicTensor) and bare else value
        for value in _apply(step)
    ]
    if step.operator in _GUARDED:
        return results if step.operator in ("IsNaN", "Softmax") else [replace(value, shares=False) for value in results]
    guards = _guards(step) or [None] * len(results)
    return [
        replace(value, guard=guard, shares=False) if isinstance(value, SymbolicTensor) else value
        for value, guard in zip(results, guards)
    ]


def _check_finite(step):
    """Raises an error for NaN or infinity in a constant, except for values that the operator itself takes as masks or bounds."""
    for name, value in zip(step.node.input, step.arguments):
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        bad = ~np.isfinite(value)
        bad &= ~np.isneginf(value) if step.operator in _MASKING else step.operator not in _BOUNDED or np.isnan(value)
        if bad.any():
            kind = "NaN" if np.isnan(value[bad]).all() else "infinite"
            raise ModelError(
                f"{step.title}: its constant {quoted(name)} is {kind} in {bad.sum()} of {value.size} values; "
                f"give it finite numbers, and export the model again"
            )


def _guards(step):
    """Returns the guards of the results of an operator that only moves values; None for other operators."""
    tensor = step.arguments[0]
    if step.operator not in _MASKED or not isinstance(tensor, SymbolicTensor) or tensor.guard is None:
        return None
    return _apply(replace(step, arguments=[tensor.guard, *step.arguments[1:]]))


def _check_bare(step):
    """Raises an error for operators whose meaning depends on the presence of a batch axis, if that axis may be missing. A
    Squeeze without axes removes the batch axis if the batch size is one. This changes the index of all later axes, counted from
    the front."""
    rank = max(len(value.dims) for value in step.arguments if isinstance(value, SymbolicTensor))
    axis = step.attributes.get("axis", 1 if step.operator.endswith("Softmax") and step.opset < 13 else -1)
    copies = step.operator == "Reshape" and not isinstance(step.arguments[1], SymbolicTensor) and (0, 0) in reshapes.pairs(step)
    if not OPERATORS[step.operator].counts_from_end or copies or axis not in (-1, rank - 1):
        raise ModelError(
            f"{step.title}: comes after a Squeeze without axes, which removes the batch too if there is one sample; "
            f"give the Squeeze its axes"
        )


def _check_attributes(step, known):
    """Raises an error if a node has an attribute that the handler of its operator does not read, unless the attribute has ONNX'
    default value. `known` is the entry of the operator in the registry."""
    for name, value in step.attributes.items():
        if name not in known.attributes and value != default_of(step.operator, known.domain, step.opset, name):
            shown = printable(value.decode("utf-8", "replace") if isinstance(value, bytes) else value, 60)
            raise ModelError(f"{step.title}: its attribute {name} of {shown} is not supported; leave it out")


def _apply(step):
    tensor = next(value for value in step.arguments if isinstance(value, SymbolicTensor))
    known = OPERATORS.get(step.operator)
    if any(isinstance(value, SymbolicTensor) and value.label for value in step.arguments):
        if known is None or not known.keeps_labels and known.handler is not _label:
            raise of_host(step.node, "computes with a class number or name")
    if known is None:
        raise unsupported(step.node)
    if known.group != CONSTANTS:
        _check_attributes(step, known)
    if known.handler is _label:
        return [_label(step, tensor)]
    if tensor.label:
        return [_kept_label(step, tensor, known)]
    if known.group == CONSTANTS:
        raise _of_scalar(step, tensor) or unsupported(step.node)
    if step.operator == "CastLike" and not isinstance(step.arguments[0], SymbolicTensor):
        return [shapes.cast_like(step, tensor)]
    if known.shaped_by_constants and not isinstance(step.arguments[0], SymbolicTensor):
        raise ModelError(f"{step.title}: its shape must be constant")
    tensors = [value for value in step.arguments if isinstance(value, SymbolicTensor)]
    if step.operator != "MaxPool" and any((value.index == LOWEST).any() for value in tensors):
        raise ModelError(f"{step.title}: its input is padded with the lowest number, which only MaxPool can read")
    if step.operator not in _MASKED and any(value.low or hidden(value.index).any() for value in tensors):
        raise ModelError(f"{step.title}: works on infinite values of a mask; a mask must be added directly before a Softmax")
    outer = {value.outer for value in tensors if value.batch is not None}
    if len(outer) > 1 or outer - {1} and step.operator not in _ANY_ROWS:
        raise ModelError(f"{step.title}: a Reshape before it joins an axis of {show(tensor)} with the samples, as its first part")
    if tensor.integer and known.group != SHAPES and step.operator not in ("Scaler", *_LOGIC):
        truth = compared(step, tensor)
        if truth is not None:
            return [truth]
        raise _of_scalar(step, tensor) or ModelError(
            f"{step.title}: works on integers; put a Cast to float before it, or compute row numbers on the host"
        )
    masked = added_masks(step) or truth_values(step, tensor)
    if masked is not None:
        return [masked]
    if step.operator not in ELEMENTS:
        if len(tensors) > 1 and not known.joins:
            several = ", ".join(name for name, one in OPERATORS.items() if one.joins)
            raise ModelError(f"{step.title}: joins two branches; only supported for {several}")
        result = _handled(step, tensor, known)
        return [
            replace(value, formulas={}, woven=False) if isinstance(value, SymbolicTensor) else value
            for value in (result if isinstance(result, list) else [result])
        ]
    if known.group == SHAPES:
        result = known.handler(step, tensor)
        return [replace(result, formulas=formulas_of(step, result))]
    return [_element(step, tensor, known)]


def _of_scalar(step, tensor):
    """Returns the error about an operator that is not supported for a scalar input, but for constants."""
    if not isinstance(tensor.source, Input) or tensor.dims != ():
        return None
    name = inline(tensor.source.name, 80)
    return ModelError(
        f"{step.title}: computes with the scalar input {quoted(name)}; give its value, --shape {name}=16000 or `shapes`"
    )


def _element(step, tensor, known):
    """Evaluates an operator that may be part of a function written in several operators. If such a function is recognised,
    returns its result. Otherwise returns the result of the operator alone."""
    tensors = [value for value in step.arguments if isinstance(value, SymbolicTensor)]
    partial = known.handler is None or any(isinstance(value.source, Unknown) for value in tensors)
    inverts = step.operator == "Reciprocal" or step.operator == "Div" and step.arguments[1] is tensor
    part = partial or known.group == PARTS
    woven = part or inverts or len(tensors) > 1 or any(value.woven for value in tensors)
    if woven:
        result = unknown(step, "" if partial or known.joins else "all of its inputs but one must be constant")
        found = recognise(step, result) or recognise_normalisation(step, result) or partial and recognise_slopes(step, result)
        if found:
            return replace(found, formulas=result.formulas, woven=True)
    alone = len(tensors) == 1 or known.joins
    if alone and not partial:
        result = _handled(step, tensor, known)
        result = replace(result, formulas=formulas_of(step, result))
    return replace(result, woven=woven)


def _handled(step, tensor, known):
    result = in_slices(step, known.handler)
    return known.handler(step, tensor) if result is None else result


@operator("ArgMax", group=FINAL, on_constants=False, counts_from_end=True, attributes=("axis", "keepdims", "select_last_index"))
@operator("ZipMap", group=FINAL, domain=ML, on_constants=False, attributes=("classlabels_int64s", "classlabels_strings"))
@operator("ArrayFeatureExtractor", group=FINAL, domain=ML, on_constants=False)
def _label(step, tensor):
    if step.operator == "ArrayFeatureExtractor" and tensor is step.arguments[0] and not tensor.label:
        return _features(step, tensor)
    if step.operator != "ArgMax":
        return replace(tensor, label="name")
    axis = step.attributes.get("axis", 0) % len(tensor.dims)
    if axis == tensor.batch:
        raise ModelError(f"{step.title}: is along axis {axis} of {show(tensor)}, the batch; a sample may only depend on itself")
    if tensor.dims[axis] != tensor.size or step.attributes.get("select_last_index", 0) or tensor.label:
        raise of_host(step.node, "is along one of several axes, selects the last index, or follows another ArgMax")
    dims, batch, keep = tensor.dims, tensor.batch, step.attributes.get("keepdims", 1)
    if not keep and batch is not None:
        batch -= axis < batch
    return replace(tensor, dims=(*dims[:axis], *(1,) * keep, *dims[axis + 1 :]), batch=batch, label="number")


def _features(step, tensor):
    """Returns the values at constant indices along the last axis."""
    index, size = step.arguments[1], tensor.dims[-1] if tensor.dims else 0
    if isinstance(index, SymbolicTensor) or not index.size or (index < 0).any() or (index >= size).any():
        raise ModelError(f"{step.title}: its indices must be constant, and below {size}")
    shapes.own_axis(step, tensor, -1, "picks")
    found = tensor.sample.take(index.reshape(-1), axis=-1)
    return tensor.permuted(found if found.ndim > 1 else found[None])


def _kept_label(step, tensor, known):
    """Returns a class label after an operator that changes only its shape. A Cast returns the label as it is."""
    if tensor.label == "name" or known.handler is shapes.keep:
        return tensor
    one = replace(tensor, index=np.zeros(1, int), label="")
    moved = known.handler(replace(step, arguments=[one, *step.arguments[1:]]), one)
    return replace(tensor, dims=moved.dims, batch=moved.batch, bare=moved.bare)

"""The inputs of a model: their shapes and types, the batch, and the nodes that hold their values."""

from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ..data.printable import printable, quoted
from ..fusion.nodes import Input
from ..ir.errors import ModelError
from ..ir.model_ends import ModelInput
from .index.values import FLOATS, INTEGERS, MOST_VALUES, SymbolicTensor

__all__ = [
    "NO_BATCH",
    "TRAINING_FORM",
    "Inputs",
    "check_sizes",
    "in_inference_form",
    "in_training_form",
    "is_in_training_form",
    "read_inputs",
]

NO_BATCH = 0
#: Metadata of a model in the form that training needs. Its inputs are tensors of their own in the core: weights of tensors side
#: by side have zeros, which would be trained. So are its pixels (:mod:`sim.frontend.index.pixels`).
TRAINING_FORM = {"form": "training"}


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model."""

    entries: tuple
    values: dict
    shape: tuple  # Tuple of int. Shape of one sample; several inputs form a vector.
    samples: int | None  # batch size of the model; None if it is open; NO_BATCH
    #: is_open, is_fixed: The batch is declared as open, or as a fixed number above 1.
    is_open: bool = False
    is_fixed: bool = False


def read_inputs(graph, initializers, layouts, samples, apart=False):
    """Returns the :class:`Inputs` of an `onnx.GraphProto`; `layouts` and `samples` are the reader's."""
    entries = [entry for entry in graph.input if entry.name not in initializers]
    if not entries:
        raise ModelError("the graph has no input")
    found = [_dims_of(entry) for entry in entries]
    if samples != NO_BATCH and _has_no_batch(entries, found):
        samples = NO_BATCH
    alone = samples == NO_BATCH
    shapes = [tuple(dims if alone else dims[1:]) for dims in found]
    check_sizes(entries, first=0 if alone else 1)
    if sum(map(prod, shapes)) > MOST_VALUES:
        entry = entries[int(np.argmax(list(map(prod, shapes))))]
        raise ModelError(
            f"input {quoted(entry.name)} has the shape {_shown(entry)}; at most {MOST_VALUES} values per sample are supported"
        )
    batch = 1 if alone else found[0][0] or samples
    ends = np.cumsum([0, *map(prod, shapes)]).tolist()
    made = tuple(
        ModelInput(entry.name, entry.type.tensor_type.elem_type, shape, first)
        for entry, shape, first in zip(entries, shapes, ends)
    )
    facts = {} if alone else {"is_open": found[0][0] is None, "is_fixed": (found[0][0] or 0) > 1}
    values = {}
    # A single sample has no batch: operators along the axis of size 1 apply to this sample.
    axis = {} if batch == 1 else {"batch": 0, "samples": batch}
    for one, (node, index) in zip(made, _nodes(made, layouts, apart)):
        dims = one.shape if alone else (1, *one.shape)
        kinds = {"integer": one.element in INTEGERS, "truth": one.element == TensorProto.BOOL}
        values[one.name] = SymbolicTensor(dims, node, index, **kinds, **axis)
    return Inputs(made, values, shapes[0] if len(made) == 1 else (ends[-1],), samples, **facts)


def in_training_form(model):
    """Returns a copy of an onnx.ModelProto that is read in the form for training."""
    made = ModelProto()
    made.CopyFrom(model)
    helper.set_model_props(made, {entry.key: entry.value for entry in made.metadata_props} | TRAINING_FORM)
    return made


def is_in_training_form(model):
    """Returns True if an onnx.ModelProto has the mark of :func:`in_training_form`."""
    return TRAINING_FORM.items() <= {entry.key: entry.value for entry in model.metadata_props}.items()


def in_inference_form(model):
    """Returns a copy of a model without the mark of :func:`in_training_form`."""
    made, entries = ModelProto(), {entry.key: entry.value for entry in model.metadata_props}
    made.CopyFrom(model)
    helper.set_model_props(made, {key: value for key, value in entries.items() if key not in TRAINING_FORM})
    return made


def check_sizes(entries, first=1):
    """Raises an error that names all inputs with an open size at an axis from `first` on."""
    found = [entry for entry in entries if any(map(_is_open, entry.type.tensor_type.shape.dim[first:]))]
    if found:
        several, options = len(found) > 1, " ".join(f"--shape {_example(entry)}" for entry in found)
        named = ", ".join(f"{quoted(entry.name)} has the shape {_shown(entry)}" for entry in found)
        raise ModelError(
            f"input{'s' * several} {named}: only the first size, the batch, may be open; give {'all' if several else 'its'} "
            f"sizes with {options} or `shapes`, or export the model with fixed sizes"
        )


def _is_open(dim):
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _nodes(inputs, layouts, apart):
    """Returns `(node, index)` of each input. Unless they are `apart`, vectors of one type share a node, as its channels; so do
    images of one size."""
    images = len(inputs) > 1 and all(len(one.shape) == 3 and one.shape[1:] == inputs[0].shape[1:] for one in inputs)
    if (
        len(inputs) == 1
        or apart
        or not images
        and (
            any(one.element in INTEGERS or one.element != inputs[0].element for one in inputs)
            or any(sum(size > 1 for size in one.shape) > 1 for one in inputs)
        )
    ):
        return [_node_of(one, layouts.get(one.name)) for one in inputs]
    size = inputs[-1].place.stop
    shape, places = (1, 1, size), np.arange(size)
    if images:
        shape = (*inputs[0].shape[1:], sum(one.shape[0] for one in inputs))
        places = places.reshape(shape[2], *shape[:2]).transpose(1, 2, 0).reshape(-1)
    title = f"input {', '.join(quoted(one.name) for one in inputs)}"
    node = Input(name="inputs", title=title, sample=(size,), shape=shape, places=places)
    index = np.argsort(places)
    return [(node, index[one.place]) for one in inputs]


def _node_of(one, layout):
    """Returns `(node, index)` of an input with a node of its own."""
    size = prod(one.shape)
    order = np.arange(size) if layout is None else layout.order
    node = Input(
        name=one.name,
        title=f"input {quoted(one.name)}",
        value=one.name,
        sample=one.shape,
        loose=layout is None,
        shape=(1, 1, size) if layout is None else layout.shape,
        places=one.first + order,
    )
    return node, np.argsort(order)


def _dims_of(entry):
    """Returns the sizes of an input; None for an open size."""
    kind = entry.type.tensor_type
    if not entry.type.HasField("tensor_type") or kind.elem_type not in (*FLOATS, *INTEGERS):
        raise ModelError(f"input {quoted(entry.name)} is not a tensor of numbers")
    if not kind.HasField("shape"):
        raise ModelError(f"input {quoted(entry.name)} has no shape; export the model with one")
    if any(d.HasField("dim_value") and d.dim_value == 0 for d in kind.shape.dim[1:] or kind.shape.dim):
        raise ModelError(f"input {quoted(entry.name)} is empty: one of its sizes is 0")
    return [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]


def _shown(entry):
    dims = entry.type.tensor_type.shape.dim
    return f"({', '.join(str(d.dim_value) if d.HasField('dim_value') else printable(d.dim_param or '?', 40) for d in dims)})"


def _example(entry):
    sizes = (str(d.dim_value) if d.dim_value > 0 else "?" for d in entry.type.tensor_type.shape.dim)
    return f"{printable(entry.name, 80)}={','.join(sizes)}"


def _has_no_batch(entries, found):
    """Returns True if all inputs together are one sample: a vector alone, or several inputs of fixed sizes without a common first
    size. Refuses open sizes that differ."""
    if len(entries) == 1:
        return len(found[0]) < 2
    if all(len(dims) > 1 for dims in found) and len({dims[0] for dims in found}) == 1:
        return False
    if not any(None in dims for dims in found):
        return True
    names = ", ".join(f"{quoted(entry.name)} {_shown(entry)}" for entry in entries)
    if any(len(dims) < 2 for dims in found):
        raise ModelError(f"each of several inputs must have the batch as its first axis: {names}")
    raise ModelError(f"the inputs have different batches: {names}")

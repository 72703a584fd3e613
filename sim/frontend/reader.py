"""The reader of ONNX files.

The reader evaluates the graph from its outputs back to its inputs. Constants are folded. An operator that only permutes or
reshapes a sample changes the index map of a symbolic tensor; it costs no cycles. Every other operator becomes a node of the
binary64 network (:mod:`sim.fusion.nodes`). The nodes are fused into stages (:mod:`sim.fusion.fuse`). Only then are weights
rounded to bfloat16 (:mod:`sim.fusion.rounding`). An operator that cannot be a stage is refused with a
:class:`sim.ir.errors.ModelError` that names the operator and the node.
"""

import gc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ..data.printable import printable
from ..fusion.fuse import fuse
from ..fusion.nodes import Copy, Input, Joint, Linear, identity
from ..fusion.origin import make_origin
from ..fusion.rounding import as_graph
from ..ir.errors import ModelError
from .evaluation import Evaluation, check_operators
from .fixed_shapes import with_shapes
from .index.relayout import Relayout
from .index.values import BatchFixed
from .inputs import NO_BATCH
from .local_functions import without_functions
from .messages import inline
from .old_opsets import OLDEST, converted
from .operators.expressions import limited_proofs
from .order import sort_nodes
from .other_formats import other_format
from .registry import LINEAR, operators_of
from .validity.model import check_header, check_names, check_text
from .validity.nodes import check_nodes
from .wrapped_indices import without_wrapping

__all__ = ["checked_model", "model_of", "read_model", "read_network"]


_LARGE = 1 << 24  # bytes of a file


def read_network(path, keep_softmax=False, shapes=None, means=None):
    """Reads a file and returns its :class:`sim.ir.graph.Graph`, as :func:`sim.frontend.load.load_network` does."""
    graph = read_model(model_of(path), path, keep_softmax, shapes, means)
    if path.stat().st_size > _LARGE:  # nodes refer to each other, so that their weights would stay until the next collection
        gc.collect()
    return graph


def model_of(path):
    """Returns the `onnx.ModelProto` in a file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{printable(path)}: {error.strerror or error}; name an ONNX file") from None
    if (other := other_format(path, content)) is not None:
        raise ModelError(f"{printable(path)}: {other}")
    try:
        return onnx.ModelProto.FromString(content)
    except DecodeError:
        raise ModelError(f"{printable(path)}: not an ONNX model, or a damaged or truncated one; export it again") from None


def read_model(model, path, keep_softmax=False, shapes=None, means=None):
    """Reads an `onnx.ModelProto` in memory and returns its :class:`sim.ir.graph.Graph`. `path` is its name in messages, and
    locates its external files. For `shapes` and `means`, see :func:`sim.frontend.load.load_network`."""
    with _named(path):
        model = without_wrapping(checked_model(model, shapes, check_operators))
        with np.errstate(all="ignore"):
            return _network(model, path, keep_softmax, shapes or {}, means)


@contextmanager
def _named(path):
    """Adds the name of the file to errors."""
    try:
        yield
    except ModelError as error:
        named = ModelError(inline(f"{path}: {error}", 600))
        named.value = error.value
        raise named from None


def checked_model(model, shapes=None, check_operators=lambda graph: None):
    """Returns a model in the form that the reader evaluates: without local functions, with its nodes in topological order, and
    with the shapes that the user gave. Raises ModelError if it breaks a rule of ONNX. `check_operators` is called before nodes
    are checked, and may raise, too."""
    if not model.HasField("graph") or not model.graph.node:
        raise ModelError("it has no graph: not an ONNX model, or a truncated one; export it again")
    check_text(model)
    opsets = check_header(model)
    if opsets[""] < OLDEST:
        model = converted(model, opsets[""])
        opsets = check_header(model)
    if model.functions:
        model = without_functions(model)
    check_names(model.graph, opsets)
    if shapes:
        model = with_shapes(model, shapes)
    model = sort_nodes(model)
    check_operators(model.graph)
    check_nodes(model.graph, opsets)
    return model


def _network(model, path, keep_softmax, shapes, means):
    reader, result, softmax = _read(model, path.parent, keep_softmax)
    order = result.index
    ends = fuse(*_ends(result.source))
    if len(ends) == 1:
        if isinstance(ends[0], Input):
            raise ModelError(f"it has no layer; at least one {' or '.join(operators_of(LINEAR))} is needed")
        node, order = _in_order(*ends, order)
        ends = (node,)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    kind = metadata.get("preprocess")
    origin = make_origin(
        path,
        model.graph,
        inputs=reader.inputs.entries,
        batch=reader.inputs.samples,
        shapes=reader.shapes,
        labels=reader.labels,
        left_out=reader.left_out,
        places=reader.places,
        ends=ends,
        order=order,
        fixed=shapes,
    )
    shape = reader.inputs.shape
    facts = {"softmax": softmax, "input_shape": shape, "preprocess": kind and printable(kind, 80), "origin": origin}
    return as_graph(printable(path.stem), ends, order, means, **facts)


def _ends(node):
    """Returns the nodes that compute the results, from the node of the results. An input among several is copied."""
    sources = node.sources if isinstance(node, Joint) else (node,)
    if len(sources) == 1:
        return sources
    return tuple(
        Linear(name=one.name, title=one.title, shape=one.shape, parts=(identity(one),)) if isinstance(one, Input) else one
        for one in sources
    )


def _in_order(node, order):
    """Permutes the outputs of the last layer into the order of the result, if the layer has one position and its outputs can be
    permuted. Returns the new `(node, order)`. If the outputs cannot be permuted, returns the arguments."""
    if isinstance(node, Copy):
        return node, order
    natural = np.arange(node.shape[2])
    if (
        node.shape[:2] != (1, 1)
        or np.array_equal(order, natural)
        or not np.array_equal(np.sort(order), natural)
        or node.softmax
        or node.times is not None
        or any(tap.groups > 1 for part in node.parts for tap in part.taps)
    ):
        return node, order
    parts = tuple(
        replace(part, taps=tuple(replace(tap, weights=tap.weights[..., order], select=None) for tap in part.taps))
        for part in node.parts
    )
    bias = None if node.bias is None else node.bias[..., order]
    view = node.view and replace(node.view, index=np.argsort(order)[natural if node.view.index is None else node.view.index])
    return replace(node, parts=parts, bias=bias, value=None, view=view), natural


def _read(model, folder, keep_softmax):
    """Reads a model repeatedly, each time with a different layout or batch size of the input, until one attempt succeeds.
    Returns `(reader, tensor of the result, True if a Softmax at the end was removed)`."""
    layouts, samples, first = {}, None, None  # layouts of inputs; the batch if it is open; the error with the previous batch
    size = model.graph.ByteSize()  # takes long for large graphs
    while True:
        reader = Evaluation(model, folder, layouts, samples, size)
        try:
            with limited_proofs():
                return reader, *reader.read(keep_softmax)
        except Relayout as better:
            layouts = layouts | {better.name: better.with_traceback(None)}  # its frames hold all values
        except ModelError as error:
            if first is not None:
                raise (error if isinstance(first, BatchFixed) and first.certain else first) from None
            # Some exporters leave the batch open at the input, but fix it in a Reshape at the traced size; other models have no
            # batch.
            fixed = reader.inputs is not None and reader.inputs.is_fixed
            again = NO_BATCH if fixed else reader.fixed_by(error) if isinstance(error, BatchFixed) else None
            if again is None:
                raise
            first, layouts, samples = error.with_traceback(None), {}, again

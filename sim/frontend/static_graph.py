"""One pass over a graph with fixed input shapes: the type and shape of each value, and constants in place of computed shapes.

After the pass, no node computes a shape from the shape of another value. So any set of nodes can be a model of its own.
"""

from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..data.memory_limit import limited_memory
from ..ir.errors import ModelError
from .branches import chosen_branch, reads_of
from .constants import fold_constants
from .index.values import Step
from .registry import ONNX

__all__ = ["RANDOM", "StaticGraph", "static_graph"]

_FEW = 1 << 12  # elements up to which a constant is computed here; others stay nodes
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")


@dataclass
class StaticGraph:
    """A graph whose shapes are known as far as they do not depend on data."""

    opsets: dict  # {domain: version}
    ir_version: int
    inputs: list  # names
    outputs: list  # names
    nodes: list = field(default_factory=list)  # in topological order, without the computation of shapes
    initializers: dict = field(default_factory=dict)  # {name: TensorProto}
    kinds: dict = field(default_factory=dict)  # {name: (element type, shape or None)} of each value whose type is known
    types: dict = field(default_factory=dict)  # {name: onnx.TypeProto} of values that are not tensors
    constant: set = field(default_factory=set)  # names of values that do not depend on an input

    @property
    def opset(self):
        return self.opsets.get("", 0)

    def shape(self, name):
        """Returns the shape of a value as a tuple, or None if it depends on data."""
        return self.kinds.get(name, (0, None))[1]

    def size(self, name):
        """Returns the number of elements of a value; 0 if it is unknown."""
        shape = self.shape(name)
        return 0 if shape is None else prod(shape)


def static_graph(model, folder):
    """Returns the :class:`StaticGraph` of an `onnx.ModelProto` whose nodes are in topological order and whose inputs have fixed
    shapes. `folder` has the external data."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    opsets = {"" if entry.domain in ONNX else entry.domain: entry.version for entry in model.opset_import}
    inputs = [entry.name for entry in graph.input if entry.name not in stored]
    found = StaticGraph(opsets, model.ir_version, inputs, [entry.name for entry in graph.output])
    entries = (*_inferred(model), *graph.output, *graph.input)
    declared = {entry.name: _kind(entry) for entry in entries if entry.type.HasField("tensor_type")}
    found.types = {entry.name: entry.type for entry in entries if entry.type.WhichOneof("value") not in (None, "tensor_type")}
    found.kinds |= {name: declared[name] for name in inputs if name in declared}
    small = {}
    for name, tensor in stored.items():
        _store(found, small, name, tensor)
    for tensor in graph.sparse_initializer:
        raise ModelError(f"sparse initialiser {tensor.values.name!r}: is not supported; store it as a plain one")
    waiting = list(reversed(graph.node))
    while waiting:
        node = waiting.pop()
        if node.op_type == "If" and node.input[0] in small:
            nodes, initializers = chosen_branch(node, small[node.input[0]], opsets)
            waiting += reversed(nodes)
            for tensor in initializers:
                _store(found, small, tensor.name, tensor)
            continue
        _visit(found, node, small, declared, folder)
    return found


def _store(found, small, name, tensor):
    found.initializers[name] = tensor
    found.kinds[name] = tensor.data_type, tuple(tensor.dims)
    found.constant.add(name)
    if prod(tensor.dims) <= _FEW and tensor.data_location != TensorProto.EXTERNAL and tensor.data_type != TensorProto.STRING:
        small[name] = numpy_helper.to_array(tensor)


def _visit(found, node, small, declared, folder):
    """Adds a node to the graph, or its results as constants."""
    reads = reads_of(node)
    results = _computed(found, node, small, folder)
    if results is not None:
        for name, value in zip(node.output, results):
            if name:
                small[name] = value
                found.initializers[name] = numpy_helper.from_array(value, name)
                found.kinds[name] = helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
                found.constant.add(name)
        return
    found.nodes.append(node)
    if reads <= found.constant and node.op_type not in RANDOM:
        found.constant.update(filter(None, node.output))
    for name, kind in _results(found, node, small).items():
        found.kinds[name] = kind
    for name in node.output:
        if name in declared and found.kinds.get(name, (0, None))[1] is None:
            found.kinds[name] = declared[name]


def _computed(found, node, small, folder):
    """Returns the results of a node as arrays if they are small, and constant once shapes are. Else returns None."""
    if node.domain not in ONNX or node.op_type in RANDOM:
        return None
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    if node.op_type in ("Shape", "Size"):
        shape = found.shape(node.input[0])
        if shape is None:
            return None
        part = np.array(shape[slice(attributes.get("start", 0), attributes.get("end", len(shape)))], np.int64)
        return [part if node.op_type == "Shape" else np.array(prod(shape), np.int64)]
    if not all(name in small for name in node.input if name) or any(one.type == one.GRAPH for one in node.attribute):
        return None
    sizes = [kind[1] for kind in _results(found, node, small).values()]
    if node.op_type != "Constant" and (None in sizes or sum(map(prod, sizes)) > _FEW):
        return None
    try:
        arguments = [small.get(name) if name else None for name in node.input]
        values = fold_constants(Step(node, arguments, attributes, found.opset), folder)
    except Exception:  # a node that cannot be computed here is left to the host
        return None
    if any(value is not None and value.size > _FEW for value in values):
        return None
    kinds = _results(found, node, small)
    return [None if value is None else _typed(np.asarray(value), kinds.get(name)) for name, value in zip(node.output, values)]


def _typed(value, kind):
    return value if kind is None else value.astype(helper.tensor_dtype_to_np_dtype(kind[0]))


def _results(found, node, small):
    """Returns `{name: kind}` of the results of a node as ONNX infers them from the kinds of its inputs."""
    if any(one.type in (one.GRAPH, one.GRAPHS) for one in node.attribute):
        return {}
    names = [name for name in dict.fromkeys(node.input) if name]
    known = [helper.make_tensor_value_info(name, *found.kinds[name]) for name in names if name in found.kinds]
    if len(known) < len(names):
        return {}
    stored = [numpy_helper.from_array(small[name], name) for name in names if name in small]
    made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    opsets = [helper.make_opsetid(domain, version) for domain, version in found.opsets.items()]
    model = helper.make_model(helper.make_graph([node], "one", known, made, stored), opset_imports=opsets)
    values = sum(shape[0] for shape in map(found.shape, node.input) if shape and len(shape) == 1)  # ONNX takes 150 bytes for each
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=values <= _FEW).graph.output
    except Exception:  # of the package onnx, for a node that breaks a rule
        return {}
    return {entry.name: _kind(entry) for entry in inferred if entry.type.tensor_type.elem_type}


def _kind(entry):
    kind = entry.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    return kind.elem_type, tuple(sizes) if kind.HasField("shape") and None not in sizes else None


def _inferred(model):
    """Returns the entries of values that ONNX infers for the whole graph, with the branches and loops in it."""
    for propagates in (True, False):
        try:
            with limited_memory(model.ByteSize()):
                return onnx.shape_inference.infer_shapes(model, data_prop=propagates).graph.value_info
        except Exception:  # of the package onnx, for a model that breaks a rule, or is too large
            continue
    return model.graph.value_info

"""Branches of `If` nodes whose condition is constant. The nodes of the chosen branch take the place of the `If` node."""

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper

from ..ir.errors import ModelError
from .index.values import SymbolicTensor
from .messages import title
from .order import sort_nodes
from .validity.model import check_names
from .validity.nodes import check_nodes

__all__ = ["chosen_branch", "reads_of"]


def reads_of(node):
    """Returns the names of the values that a node reads, with those that its branches read from the graph around it."""
    names = {*filter(None, node.input)}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            inner = {name for one in attribute.g.node for name in reads_of(one)} | {entry.name for entry in attribute.g.output}
            names |= inner - _made(attribute.g)
    return names


def _made(graph):
    made = {name for node in graph.node for name in node.output if name}
    return made | {one.name for one in (*graph.initializer, *graph.input)}


def chosen_branch(node, condition, opsets):
    """Returns `(nodes, initializers)` in place of an `If` node with a constant condition. Names of the branch get a prefix.

    Raises ModelError if the condition depends on an input, or if the branch breaks a rule of ONNX.
    """
    if isinstance(condition, SymbolicTensor) or not isinstance(condition, np.ndarray):
        raise ModelError(
            f"{title(node)}: its condition is computed from an input; make the input constant, so that one branch remains; "
            f"a scalar input gets its value by --shape rate=16000, or by `shapes`"
        )
    if condition.size != 1 or condition.dtype != bool:
        raise ModelError(f"{title(node)}: its condition must be one truth value")
    which = "then_branch" if condition.item() else "else_branch"
    graph = next(attribute.g for attribute in node.attribute if attribute.name == which)
    if graph.input or graph.sparse_initializer or len(graph.output) != len(node.output):
        raise ModelError(f"{title(node)}: its {which} has inputs or sparse initialisers, or not {len(node.output)} outputs")
    check_names(graph, opsets)
    graph = _renamed(graph, f"{node.output[0]}/{which}/")
    graph = sort_nodes(helper.make_model(graph)).graph
    check_nodes(graph, opsets)
    nodes = list(graph.node)
    for entry, name in zip(graph.output, node.output):
        nodes += [helper.make_node("Identity", [entry.name], [name], name=node.name)] if name else []
    return nodes, list(graph.initializer)


def _renamed(graph, prefix, inner=frozenset()):
    """Returns a copy of a branch in which the names that it defines, and the names in `inner`, have a prefix."""
    made, copy = _made(graph) | inner, GraphProto()
    copy.CopyFrom(graph)

    def new(name):
        return prefix + name if name in made else name

    for entry in (*copy.initializer, *copy.output, *copy.value_info):
        entry.name = new(entry.name)
    for node in copy.node:
        _rename(node, new)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                attribute.g.CopyFrom(_renamed(attribute.g, prefix, made))
    return copy


def _rename(node: NodeProto, new):
    for names in (node.input, node.output):
        names[:] = [new(name) if name else "" for name in names]

"""Indices of a table that a model wraps itself before Gather, which wraps negative indices too.

Keras' Embedding reads row `Where(i < 0, i + rows, i)`.
"""

import onnx
from onnx import numpy_helper

__all__ = ["without_wrapping"]


def without_wrapping(model):
    """Returns an onnx.ModelProto in which each Gather from a table reads the indices before they are wrapped. Returns `model`
    itself if there are none."""
    nodes = {name: node for node in model.graph.node for name in node.output}
    tables = {one.name: one for one in model.graph.initializer}
    found = {}
    for number, node in enumerate(model.graph.node):
        if node.op_type == "Gather" and len(node.input) == 2 and node.input[0] in tables:
            axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
            sizes = tables[node.input[0]].dims
            if -len(sizes) <= axis < len(sizes):
                found[number] = _before(node.input[1], sizes[axis], nodes, tables)
    found = {number: name for number, name in found.items() if name}
    if not found:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for number, name in found.items():
        changed.graph.node[number].input[1] = name
    return changed


def _before(name, rows, nodes, tables):
    """Returns the name of the indices that `name` has wrapped for a table of `rows` rows. Returns None if it has not."""
    where = nodes.get(name)
    if where is None or where.op_type != "Where" or len(where.input) != 3:
        return None
    indices = where.input[2]
    less, added = (nodes.get(one) for one in where.input[:2])
    if _is(less, "Less", indices, 0, nodes, tables) and _is(added, "Add", indices, rows, nodes, tables):
        return indices
    return None


def _is(node, operator, operand, number, nodes, tables):
    if node is None or node.op_type != operator or len(node.input) != 2 or node.input[0] != operand:
        return False
    constant = tables.get(node.input[1])
    if constant is None and (maker := nodes.get(node.input[1])) is not None and maker.op_type == "Constant":
        constant = next((one.t for one in maker.attribute if one.name == "value"), None)
    if constant is None or constant.external_data or list(constant.dims) not in ([], [1]):
        return False
    return numpy_helper.to_array(constant).item() == number

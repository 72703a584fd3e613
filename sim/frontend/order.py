"""The topological order of a graph's nodes."""

import heapq

from ..data.printable import quoted
from ..ir.errors import ModelError
from .messages import title

__all__ = ["in_order", "sort_nodes"]


def in_order(graph):
    """Returns the indices of the nodes of an `onnx.GraphProto` in topological order. Nodes that are already in order keep their
    places.

    Raises ModelError if the graph has a cycle.
    """
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waiting = [{makers[name] for name in node.input if name in makers} for node in nodes]
    users = [[] for _ in nodes]
    for place, needed in enumerate(waiting):
        for maker in needed:
            users[maker].append(place)
    ready, order = [place for place, needed in enumerate(waiting) if not needed], []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for user in users[place]:
            waiting[user].discard(place)
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        node = nodes[_on_cycle(waiting)]
        name = next(filter(None, node.output))
        raise ModelError(f"{title(node)}: the graph is cyclic: {quoted(name)} depends on itself; remove the cycle")
    return order


def _on_cycle(waiting):
    """Returns the index of a node on a cycle. `waiting` has, for each node, the indices of the nodes that it still waits for.
    The function follows these indices until a node occurs again."""
    place, seen = next(place for place, needed in enumerate(waiting) if needed), set()
    while place not in seen:
        seen.add(place)
        place = min(waiting[place])
    return place


def sort_nodes(model):
    """Returns an `onnx.ModelProto` with its nodes in topological order. If the nodes of `model` are already in order, `model`
    itself is returned. Otherwise a copy is returned."""
    order = in_order(model.graph)
    if order == sorted(order):
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(model.graph.node[place] for place in order)
    return copy

"""The part of a model that is left to the host: operators that choose among results, such as TopK, and all nodes after them.

The handler of such an operator raises :class:`LeftToHost`. The reader then ends the network before it.
"""

from ..data.printable import quoted
from .branches import reads_of
from .messages import title
from .registry import LINEAR, operators_of

__all__ = ["ALWAYS", "MAY_BE_LEFT", "LeftToHost", "describe", "nodes_from"]

#: Operators that the host always computes, and their attributes.
ALWAYS = {
    "TopK": ("axis", "k", "largest", "sorted"),
    "NonMaxSuppression": ("center_point_box",),
    "ArgMin": ("axis", "keepdims", "select_last_index"),
}

#: Operators that may be left to the host, so that other operators are not needed after them.
MAY_BE_LEFT = (*ALWAYS, "ArgMax", "LogSoftmax")


class LeftToHost(Exception):
    """The end of the network before `node`, an `onnx.NodeProto`, which the host computes."""

    def __init__(self, node):
        super().__init__()
        self.node = node


def nodes_from(nodes, first):
    """Returns the nodes in `first`, and all nodes that depend on them, as a list in the order of `nodes`, which is not
    necessarily topological."""
    first, found, names, size = {id(node) for node in first}, [], set(), -1
    while len(names) > size:
        size = len(names)
        found = [node for node in nodes if id(node) in first or names.intersection(reads_of(node))]
        names = {name for node in found for name in node.output if name}
    return found


def describe(node, nodes, results):
    """Returns a sentence about the host's part: `nodes`, from `node` on, with the names of its operands, `results`."""
    more, layers = len(nodes) - 1, sum(one.op_type in operators_of(LINEAR) for one in nodes)
    after = f" and {more} node{'s' * (more > 1)} after it" if more else ""
    among = f" ({layers} of them Conv, MatMul and the like)" if layers else ""
    return f"{title(node)}: left to the host, which computes it{after}{among} from {', '.join(map(quoted, results))}"

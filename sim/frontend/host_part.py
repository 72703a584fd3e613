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


_MOST_NAMES = 8  # in a message


class LeftToHost(Exception):
    """The end of the network before `node`, an `onnx.NodeProto`, which the host computes."""

    def __init__(self, node):
        super().__init__()
        self.node = node


def nodes_from(nodes, first):
    """Returns the nodes in `first`, and all nodes that depend on them, as a list in the order of `nodes`, which is not
    necessarily topological."""
    readers = {}
    for node in nodes:
        for name in reads_of(node):
            readers.setdefault(name, []).append(node)
    found, stack = set(), list(first)
    while stack:
        node = stack.pop()
        if id(node) not in found:
            found.add(id(node))
            stack += [reader for name in node.output if name for reader in readers.get(name, ())]
    return [node for node in nodes if id(node) in found]


def describe(node, nodes, results, missing):
    """Returns a sentence about the host's part: `nodes`, from `node` on, with the names of its operands, `results`, and of the
    file's outputs that are not computed, `missing`."""
    more, layers = len(nodes) - 1, sum(one.op_type in operators_of(LINEAR) for one in nodes)
    after = f" and {more} node{'s' * (more > 1)} after it" if more else ""
    among = f" ({layers} of them Conv, MatMul and the like)" if layers else ""
    return (
        f"{title(node)}: left to the host, which computes it{after}{among} from {_listed(results)}; "
        f"outputs of the file that are not computed: {_listed(missing)}"
    )


def _listed(names):
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(quoted, names[:_MOST_NAMES])) + more

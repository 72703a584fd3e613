"""Names of nodes in the reader's messages, and the refusal of a node."""

from ..data.printable import printable, quoted
from ..ir.errors import ModelError
from .registry import ONNX

__all__ = ["first_output", "inline", "title", "unsupported"]


def inline(text, limit=300):
    """Returns a text on one line of at most `limit` characters that are safe to show."""
    text = printable(" ".join(str(text)[: 10 * limit].split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def first_output(node):
    """Returns the name of the first output that is not left out, or "" if all are."""
    return next(filter(None, node.output), "")


def title(node):
    """Returns the name of a node in messages."""
    operator = node.op_type if node.domain in ONNX else f"{node.domain}.{node.op_type}"
    made = first_output(node)
    name = quoted(node.name) if node.name else f"(unnamed, makes {quoted(made)})" if made else "(unnamed)"
    return f"operator {printable(operator, 80)}, node {name}"


def unsupported(node, why="is not supported"):
    """Returns the error for an operator that is not supported."""
    return ModelError(f"{title(node)}: {why}; `tpu run --operators` lists the supported operators")

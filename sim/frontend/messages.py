"""Texts of the reader's error messages: names of nodes, and the error about an unsupported operator."""

from ..data.printable import printable, quoted
from ..ir.errors import ModelError
from .registry import ONNX

__all__ = ["first_output", "inline", "of_host", "title", "unsupported"]


def inline(text, limit=300):
    """Returns a text for messages: on one line, at most `limit` characters long, and without characters that are unsafe to
    show."""
    text = printable(" ".join(str(text)[: 10 * limit].split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def first_output(node):
    """Returns the name of a node's first output that is not left out, or "" if all are left out."""
    return next(filter(None, node.output), "")


def title(node):
    """Returns the description of a node in messages: its operator and its name."""
    operator = node.op_type if node.domain in ONNX else f"{node.domain}.{node.op_type}"
    made = first_output(node)
    name = quoted(node.name) if node.name else f"(unnamed, makes {quoted(made)})" if made else "(unnamed)"
    return f"operator {printable(operator, 80)}, node {name}"


def of_host(node, why):
    """Returns the error about an operator that the host computes. `why` completes the sentence that begins with the node."""
    return ModelError(f"{title(node)}: {why}, which only the host computes; leave out --strict, or cut the model before it")


def unsupported(node, why="is not supported"):
    """Returns the error about an operator that is not supported. `why` completes the sentence that begins with the node."""
    return ModelError(
        f"{title(node)}: {why}; `tpu run --operators` lists the supported operators; "
        f"write it with these, or cut the model before it"
    )

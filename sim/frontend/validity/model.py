"""Checks of a whole model against ONNX' definition, before any node is evaluated.

Names must be unique, and operators must exist in the operator set of the model. :mod:`sim.frontend.order` sorts the nodes.
:mod:`sim.frontend.validity.nodes` checks each node. :mod:`sim.frontend.validity.ranges` checks values and shapes when nodes are
evaluated.
"""

from collections import Counter
from collections.abc import Sequence

import onnx
from onnx import defs, helper

from ...data.printable import printable, quoted
from ...ir.errors import ModelError
from ..messages import title
from ..registry import ONNX
from .operator_rules import ML, rules_of

__all__ = ["check_text", "check_header", "check_names"]

_OLDEST_IR = 3  # older files could not name their operator set


def check_text(message):
    """Raises an error if a protobuf message contains names that are not UTF-8 text. Protobuf returns such names as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,):
                if isinstance(text, bytes):
                    raise ModelError(
                        f"its {message.DESCRIPTOR.name} has a {field.name} that is not UTF-8 text: "
                        f"{printable(text, 60)}; is the file damaged?"
                    )
        elif field.type == field.TYPE_MESSAGE:
            for inner in value if isinstance(value, Sequence) else (value,):
                check_text(inner)


def check_header(model):
    """Checks the versions of the IR and of the operator sets. Returns `{domain: opset version}`."""
    if not _OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"IR version {model.ir_version} is not one of {_OLDEST_IR} to {onnx.IR_VERSION}, which the onnx package knows; "
            "export the model again, or install a newer onnx"
        )
    known = {"": defs.onnx_opset_version(), ML: max(row[3] for row in helper.VERSION_TABLE)}
    opsets = {}
    for entry in model.opset_import:
        domain = "" if entry.domain in ONNX else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"two operator sets, {opsets[domain]} and {entry.version}, of the domain {quoted(domain)}")
        if domain in known and not 1 <= entry.version <= known[domain]:
            raise ModelError(
                f"opset {entry.version} of the domain {quoted(domain or ONNX[1])} is not one of 1 to "
                f"{known[domain]}, which the onnx package knows; export the model for one of these, or install a "
                "newer onnx"
            )
    if "" not in opsets and model.graph.node and not any(node.domain in ONNX for node in model.graph.node):
        opsets[""] = known[""]  # no node needs it
    if "" not in opsets:
        raise ModelError("the file does not say which operator set it uses; is it truncated?")
    return opsets


def check_names(graph, opsets):
    """Raises an error if the name of a value is missing or occurs twice, or if `opsets`, {domain: version}, do not define the
    operator of a node."""
    makers = _constants(graph)
    outputs = Counter(entry.name for entry in graph.output)
    twice = next((name for name, count in outputs.items() if count > 1), None)
    if twice is not None:
        raise ModelError(f"output {quoted(twice)} is named twice among the graph's outputs")
    for node in graph.node:
        for name in filter(None, node.output):
            if name in makers:
                other = makers[name]
                raise ModelError(
                    f"{title(node)}: makes {quoted(name)}, which is {other}"
                    if isinstance(other, str)
                    else f"two nodes make {quoted(name)}: {title(other)} and {title(node)}"
                )
            makers[name] = node
    for node in graph.node:
        rules_of(node, opsets)


def _constants(graph):
    """Returns {name: description for messages} of the graph's inputs and initialisers. Raises an error if one of these names is
    missing or occurs twice.

    Before IR version 4, ONNX requires that each initialiser is an input too. onnx.version_converter omits such inputs, and
    onnxruntime does not require such inputs. An initialiser that is not an input is accepted as a constant.
    """
    inputs = Counter(entry.name for entry in graph.input)
    names = [*(tensor.name for tensor in graph.initializer), *(tensor.values.name for tensor in graph.sparse_initializer)]
    constants = Counter(names)
    for what, count in (("input", inputs), ("initialiser", constants)):
        for name, times in count.items():
            if not name:
                raise ModelError(f"an {what} has no name")
            if times > 1:
                raise ModelError(f"there are {times} {what}s with the name {quoted(name)}")
    return {**dict.fromkeys(inputs, "an input"), **dict.fromkeys(constants, "an initialiser")}

"""Inlining of an ONNX model's local functions."""

from onnx import defs

from ..data.printable import printable
from ..ir.errors import ModelError
from .messages import inline, title
from .registry import ONNX

__all__ = ["without_functions"]

_MOST_NODES = 20_000  # of the inlined graph


def without_functions(model):
    """Returns the model with its local functions inlined. Raises an error if a function is recursive, or if the inlined
    functions would make the graph much larger than the file."""
    _count(model)
    from onnx.inliner import inline_local_functions

    try:
        inlined = inline_local_functions(model)
    except Exception as error:  # the library raises various errors for a damaged function
        raise ModelError(f"its local functions cannot be inlined: {inline(error)}") from None
    _check_opsets(model, inlined)
    return inlined


def _check_opsets(model, inlined):
    """Raises an error if the operator set of a function differs from the operator set of the model. The library does not inline
    such functions."""
    opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
    functions = {_key(function.domain, function.name, function.overload): function for function in model.functions}
    for node in inlined.graph.node:
        function = functions.get(_key(node.domain, node.op_type, node.overload))
        for entry in function.opset_import if function else ():
            there = opsets.get(_domain(entry.domain), entry.version)
            if there != entry.version:
                raise ModelError(
                    f"{title(node)}: is a local function of opset {entry.version}, in a model of opset {there}; "
                    "export both with the same one"
                )


def _domain(domain):
    return "" if domain in ONNX else domain


def _key(domain, name, overload):
    return _domain(domain), name, overload


def _count(model):
    """Checks the local functions before they are inlined. Raises an error for duplicate names, for recursion, and if the inlined
    graph would have too many nodes."""
    functions = {}
    for function in model.functions:
        key = _key(function.domain, function.name, function.overload)
        if key in functions:
            raise ModelError(f"there are two local functions {_shown(key)}")
        if not key[0] and defs.has(function.name):
            raise ModelError(
                f"local function {_shown(key)} has the name of ONNX' own operator, which interpreters run instead; "
                "give it another name or domain"
            )
        functions[key] = function
    sizes = {}

    calls = {
        key: [_key(node.domain, node.op_type, node.overload) for node in function.node] for key, function in functions.items()
    }
    stack, entered = list(functions), set()
    while stack:
        key = stack[-1]
        wanted = [other for other in calls[key] if other in functions and other not in sizes]
        if key in sizes or not wanted:
            sizes.setdefault(key, sum(sizes.get(other, 1) for other in calls[key]))
            stack.pop()
        elif key in entered:
            raise ModelError(f"local function {_shown(key)} calls itself")
        else:
            entered.add(key)
            stack += dict.fromkeys(wanted)
    total = 0
    for node in model.graph.node:
        total += sizes.get(_key(node.domain, node.op_type, node.overload), 1)
        if total > _MOST_NODES:
            raise ModelError(
                f"{title(node)}: the local functions make more than {_MOST_NODES} nodes of the graph's "
                f"{len(model.graph.node)}; export the model without functions that double"
            )


def _shown(key):
    return printable(".".join(filter(None, key)), 80)

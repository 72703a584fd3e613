"""Errors of each layer of a network: the golden model compared with inference in binary32."""

from math import prod

import numpy as np
import onnx

from ..fusion.nodes import Input
from . import interpreters
from .interpreters import InterpreterError, values_of
from .reference import tensors_of

__all__ = ["layer_errors"]


def layer_errors(network, samples):
    """Compares the golden model with binary32 inference by an ONNX interpreter, layer by layer. Raises InterpreterError if no
    interpreter can compute the model.

    Parameters
    ----------
    network : Graph
        The network as read from a file, without changes.
    samples : float32 (count, size)

    Returns
    -------
    dict, str
        `{layer: {"value", "largest", "rms", "scale"}}`, and the interpreter's title. `value` is the name of the ONNX tensor.
        `largest` and `rms` describe the difference, and `scale` is the root mean square of the interpreter's tensor. All three
        omit numbers that are not finite. Layers whose result is not a tensor of the ONNX model are omitted.
    """
    origin = network.origin
    values = {name for node in onnx.load(origin.path, load_external_data=False).graph.node for name in node.output}
    nodes = [node for node in origin.nodes if node.value in values and not isinstance(node, Input)]
    names = {stage.value: stage.name for stage in network.stages}
    if not nodes:
        return {}, "no layer computes a value of the model"
    theirs, title = _inferred(origin, nodes, samples)
    ours = tensors_of(network, samples)
    errors = {}
    for node, value in zip(nodes, theirs):
        mine = ours[node].transpose(0, 3, 1, 2).reshape(value.shape)
        finite = np.isfinite(mine) & np.isfinite(value)
        value, difference = value[finite], mine[finite] - value[finite]
        errors[names.get(node.value, node.name)] = {
            "value": node.value,
            "largest": float(np.abs(difference).max(initial=0)),
            "rms": _rms(difference),
            "scale": _rms(value),
        }
    return errors, title


def _rms(values):
    return float(np.sqrt(np.square(values).sum() / max(1, values.size)))


def _inferred(origin, nodes, samples):
    """Returns the tensors of the nodes, each binary64 (count, values), and the title of the interpreter: the first one that can
    compute them."""
    reasons = []
    for make in interpreters.available():
        try:
            interpreter = make(origin.path, [node.value for node in nodes])
            return values_of(interpreter, origin, samples, [prod(node.shape) for node in nodes]), interpreter.title
        except InterpreterError as error:
            reasons.append(str(error))
    raise InterpreterError("; ".join(reasons))

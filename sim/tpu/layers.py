"""The tensors of every layer of a network, computed on any backend."""

from dataclasses import replace

import numpy as np

from ..fusion.nodes import Input
from ..golden.arithmetic import round_bfloat16
from ..golden.network import run_graph
from .places import Interpreter, Simulator

__all__ = ["layers_of", "trace", "network_up_to"]


def layers_of(network):
    """Returns `[(name, node, tensor)]` of the layers that the core computes, in order.

    `node` is the node of the binary64 network. `name` is the name of the ONNX tensor that the layer computes. If there is no such
    tensor, it is the name of the operator.
    """
    layers, taken = [], set()
    for node, tensor in zip(network.origin.nodes, network.sampled, strict=True):
        if not isinstance(node, Input):
            name = node.view.name if node.view and node.view.name not in taken else tensor
            while name in taken:
                name += "_"
            taken.add(name)
            layers.append((name, node, tensor))
    return layers


def network_up_to(network, tensor):
    """Returns the sub-network that computes `tensor`, with `tensor` as its output."""
    wanted, stages = {tensor}, []
    for stage in reversed(network.stages):
        if stage.output in wanted:
            stages.insert(0, stage)
            wanted.update(stage.operands)
    wide = not any(stage.times for stage in stages if stage.output == tensor)
    tensors = network.tensors | {tensor: replace(network.tensors[tensor], wide=wide)}
    return replace(network, tensors=tensors, output=tensor, stages=stages, output_order=None, beside=(), softmax=False)


def trace(network, rows, place, run):
    """Returns the tensors of all layers, `{layer: float32 (count, *shape)}`, for float32 samples (count, values).

    A core keeps intermediate tensors on the chip. To obtain the tensor of a layer, the part of the network up to that layer is
    executed separately, by `run(part)`. The results are binary32, and are then rounded as the core rounds them for the next
    layer.
    """
    layers = layers_of(network)
    if isinstance(place, Interpreter):
        found = {name: node.view for name, node, _ in layers if node.view}
        names, shapes = [view.name for view in found.values()], [view.shape for view in found.values()]
        values = place.values(network.origin, rows, names, [int(np.prod(shape)) for shape in shapes]) if names else []
        return {name: array.reshape(-1, *shape) for name, array, shape in zip(found, values, shapes)}
    if isinstance(place, Simulator) and place.name == "golden":
        _, kept = run_graph(network, rows, keep=True)
    else:
        kept = {}
        for _, _, tensor in layers:
            results = run(network_up_to(network, tensor)).reshape(-1, *network.tensors[tensor].shape)
            kept[tensor] = results if (tensor,) == network.outputs else round_bfloat16(results)
    return {name: _in_shape(node, np.asarray(kept[tensor], np.float32)) for name, node, tensor in layers}


def _in_shape(node, values):
    """Reshapes values (count, height, width, channels) to the shape of the node's ONNX tensor. If there is none, the shape is
    (count, channels, height, width)."""
    return values.transpose(0, 3, 1, 2) if node.view is None else node.view.of(values)

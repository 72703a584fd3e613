"""The values of every layer of a network, wherever it computes."""

from dataclasses import replace

import numpy as np

from ..fusion.nodes import Input
from ..golden.arithmetic import round_bfloat16
from ..golden.network import run_graph
from .places import Interpreter, Simulator

__all__ = ["layers_of", "trace", "network_up_to"]


def layers_of(network):
    """`[(name, node of the draft, tensor)]` of what is computed, in order. The name is that of the model's value with these
    numbers, or where it has none, that of the operator."""
    layers, taken = [], set()
    for node, tensor in zip(network.origin.nodes, network.tensors, strict=True):
        if not isinstance(node, Input):
            name = node.view.name if node.view and node.view.name not in taken else tensor
            while name in taken:
                name += "_"
            taken.add(name)
            layers.append((name, node, tensor))
    return layers


def network_up_to(network, tensor):
    """The part of a network that makes one of its tensors, with that as its output."""
    wanted, stages = {tensor}, []
    for stage in reversed(network.stages):
        if stage.output in wanted:
            stages.insert(0, stage)
            wanted.update(term.source for term in stage.terms)
            wanted.update([stage.times] if stage.times else [])
    tensors = {name: one for name, one in network.tensors.items() if name in wanted}
    return replace(network, tensors=tensors, output=tensor, stages=tuple(stages), output_order=None, softmax=False)


def trace(network, rows, place, run):
    """`{layer: float32 (count, *shape)}` for float32 samples (count, values).

    The core keeps layers on the chip. So of a core each layer is the result of a run of its own, of the network that ends there;
    `run(part)` gives the results, which are binary32, and are rounded here as the core rounds them for the next layer.
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
            kept[tensor] = results if tensor == network.output else round_bfloat16(results)
    return {name: _in_shape(node, np.asarray(kept[tensor], np.float32)) for name, node, tensor in layers}


def _in_shape(node, values):
    """Values (count, height, width, channels) as the model has them, or where it does not, (count, channels, height, width)."""
    return values.transpose(0, 3, 1, 2) if node.view is None else node.view.of(values)

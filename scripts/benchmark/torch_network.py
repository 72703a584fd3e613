"""A network of :class:`sim.ir.graph.Graph` in PyTorch, in binary32 or binary64 and without the core's rounding."""

import numpy as np
import torch

from amaranth_tpu.sim.golden.losses import Positions
from amaranth_tpu.sim.ir.losses import Loss

__all__ = ["TorchNetwork"]

_FUNCTIONS = {
    "none": lambda values: values,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda values: torch.nn.functional.gelu(values, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


class TorchNetwork:
    """The network and its parameters. Convolutions and pooling are not supported.

    Parameters
    ----------
    network : sim.ir.graph.Graph
        From :func:`sim.autodiff.network.step_network`.
    graph : sim.ir.graph.Graph
    masters : list of array
        Initial values of the parameters.
    kind : torch.dtype
    """

    def __init__(self, network, graph, masters, kind=torch.float32):
        self.network, self.graph, self.kind = network, graph, kind
        self.positions = Positions(graph)
        self.parameters = {
            name: self._tensor(master.reshape(network.tensors[name].shape)).requires_grad_()
            for name, master in zip(network.parameters, masters, strict=True)
        }
        self.constants = {name: self._tensor(values) for name, values in network.constants.items()}

    def _tensor(self, values):
        return torch.tensor(np.asarray(values, np.float64), dtype=self.kind)

    def _product(self, values, term, shape):
        source, weights = values[term.source], values[term.weights]
        if self.network.is_diagonal(term, shape):
            return source * weights
        if term.kernel != (1, 1) or term.groups > 1 or term.stride != (1, 1):
            raise ValueError(f"{term} is not supported")
        weights = weights.squeeze(-3)
        rows = source.reshape(*source.shape[:-3], -1, source.shape[-1])
        product = rows @ (weights.transpose(-1, -2) if term.swapped else weights)
        return product.reshape(*product.shape[:-2], *shape[:2], product.shape[-1])

    def outputs(self, x):
        """Returns results (batch, positions, classes) for values that the core reads."""
        values = {name: self._tensor(one) for name, one in self.graph.arrange_inputs(x).items()}
        values |= self.parameters | self.constants
        for stage in self.network.stages:
            shape = (*stage.size, self.network.tensors[stage.output].channels)
            total = sum((self._product(values, term, shape) for term in stage.terms), values[stage.start] if stage.start else 0)
            if stage.norm:
                total = total - total.mean(-1, keepdim=True) if stage.norm.centred else total
                total = total * ((total**2).mean(-1, keepdim=True) + stage.norm.epsilon).rsqrt()
            total = total.softmax(-1) if stage.softmax else _FUNCTIONS[stage.function.name](total)
            values[stage.output] = total * values[stage.times] if stage.times else total
        result = values[self.network.output]
        return result.reshape(len(result), -1, result.shape[-1])[:, self.positions.tensor]

    def loss(self, x, labels):
        """Returns the mean loss for values that the core reads, and labels of :class:`sim.trainer.samples.LabelledSamples`."""
        outputs = self.outputs(x)
        if self.graph.loss is Loss.SQUARED_ERROR:
            return ((outputs - self._tensor(self.positions.vectors(labels))) ** 2).mean()
        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), torch.tensor(np.asarray(labels)).reshape(-1))

"""The tensors in regions INPUT and OUTPUT, which the host writes and reads."""

from dataclasses import dataclass

import numpy as np

from .copies import Copy, copies_of

__all__ = ["HostTensor", "input_tensors", "output_tensors"]


@dataclass(frozen=True)
class HostTensor:
    """The placement of a tensor in its region of host memory.

    `copies` are the addresses of the first sample's values. Sample s is stored `(s // rows) * chunk + (s % rows) * step` elements
    after the first sample.
    """

    rows: int
    chunk: int
    step: int
    copies: tuple[Copy, ...]

    def offset(self, sample):
        """Returns the distance of a sample from the first sample, in elements."""
        return sample // self.rows * self.chunk + sample % self.rows * self.step


def _placed(memory, name, values, *places):
    """Returns the :class:`HostTensor` of the tensor `name`. `values` are the indices of its first sample's values, and `places`
    their arrays y, x and channel in the tensor."""
    step = int(memory.element(name, 1, 0, 0, 0) - memory.element(name, 0, 0, 0, 0))
    return HostTensor(1, step, 0, tuple(copies_of(values, memory.element(name, 0, *places))))


def input_tensors(memory):
    """Returns the tensors that a host fills with bfloat16, as a list of :class:`HostTensor`.

    Parameters
    ----------
    memory : sim.compiler.network_memory.NetworkMemory
    """
    graph, found = memory.network, []
    numbers = graph.arrange_inputs(graph.fed(np.arange(1, graph.sample_size + 1)[None]))
    for name, values in memory.gathered(numbers):
        values = values[0].transpose(2, 0, 1)  # 0: padding
        channel, y, x = np.nonzero(values)
        found.append(_placed(memory, name, values[channel, y, x] - 1, y, x, channel))
    return found


def output_tensors(memory):
    """Returns the tensors that a host reads, as a list of :class:`HostTensor`. They have binary32 values, or bfloat16 values if
    `memory.wide` is False."""
    found = memory.network.output_places()
    return [_placed(memory, name, values, *places) for name, values, places in found if len(values)]

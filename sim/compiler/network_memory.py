"""The memory of a network's program: places of inputs and results."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..golden.arithmetic import bfloat16

__all__ = ["NetworkMemory"]


@dataclass(frozen=True, eq=False)
class NetworkMemory:
    """The memory map of a network's program, for :class:`sim.compiler.program.Program`."""

    network: Any  # the graph before the passes of :data:`sim.compiler.passes.pipeline.MAPPING`
    lowered: Any

    @property
    def wide(self):
        """Returns True if the output is binary32."""
        return self.lowered.matrix(self.network.output).wide

    def inputs(self, x):
        """Returns {name in `tensors`: values} for samples in the model's order: bfloat16, (up to batch, input size)."""
        x, batch = np.asarray(x), self.lowered.geometry.batch
        if x.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {x.dtype}")
        if x.ndim != 2 or x.shape[1] != self.network.input_size or len(x) > batch:
            raise ValueError(f"samples must be of shape (up to {batch}, {self.network.input_size}), not {x.shape}")
        return self.network.arrange_inputs(x)

    def gathered(self, values):
        """Yields `(name, values)` of all tensors that the host stores, from the values of the inputs by name."""
        for name, one in values.items():
            yield from self.lowered.folded.gathered(name, one)

    def element(self, name, sample, y, x, channel):
        """Returns the place of a value of an input or of the output in its region, in values. Indices are integers or arrays."""
        matrix = self.lowered.matrix(name)
        row, n = sample * matrix.geometry.period + y * matrix.geometry.width + x, self.lowered.geometry.n
        place = matrix.vector * n + matrix.address(channel // n, row, matrix.halves - 1)
        return place // matrix.halves + channel % n

    def output_offset(self, sample, value):
        """Returns the byte offset, in region OUTPUT, of one result: value `value`, in the model's order, of sample `sample`."""
        for name, values, places in self.network.output_places():
            if value in values:
                places = (int(one[values == value][0]) for one in places)
                return int(self.element(name, sample, *places)) * (4 if self.wide else 2)
        raise IndexError(value)

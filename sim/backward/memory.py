"""Host memory of a training step: what is where in the regions, and how arrays get there and back."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..golden.arithmetic import bfloat16
from ..golden.training import TrainingState
from .parameters import MASTER, Planes
from .tensors import Flat

__all__ = ["StepMemory"]


class StepMemory:
    """
    Parameters
    ----------
    training : TrainingGraph
    optimizer : Sgd or Adam
    n, batch : int
    starts : tuple of int
        First samples of the chunks that go forward together, and the end of the last one.

    Members
    -------
    planes : list of Planes
        Of the parameters, in their order.
    tensors : dict of str to Flat
        The graph's, and gradients of sums.
    targets, logits : Flat
    sizes : dict of Region to vectors
        Of INPUT, SCRATCH and OUTPUT.
    """

    def __init__(self, training, optimizer, n, batch, starts):
        self.training, self.n, self.batch = training, n, batch
        self.sizes = {Region.INPUT: 0, Region.SCRATCH: 0, Region.OUTPUT: 0}
        self.planes = []
        for parameter in training.parameters:
            one = Planes(parameter, n, dict(optimizer.slots), self.sizes[Region.SCRATCH])
            self.planes.append(one)
            self.sizes[Region.SCRATCH] += one.size
        graph, blocks = training.graph, (*range(0, batch, n), batch)
        last = graph.stages[-1]
        self.tensors = {graph.input: self._place(Flat(graph.tensors[graph.input].channels, n, starts), Region.INPUT)}
        self.targets = self._place(Flat(last.channels, n, starts), Region.INPUT)
        self.logits = self._place(Flat(last.channels, n, starts, size=2), Region.OUTPUT)
        for stage in graph.stages[:-1]:
            self.tensors[stage.output] = self._place(Flat(stage.channels, n, blocks), Region.SCRATCH)
        for one in training.gradients:
            channels = graph.stages[one.stage].channels
            self.tensors[one.name] = self._place(Flat(channels, n, blocks), Region.SCRATCH)

    def _place(self, tensor, region):
        first = self.sizes[region]
        self.sizes[region] += tensor.vectors
        return tensor.at(region, first)

    def take_scratch(self, vectors):
        """Room for more in SCRATCH: its first vector."""
        first = self.sizes[Region.SCRATCH]
        self.sizes[Region.SCRATCH] += vectors
        return first

    def planes_of(self, stage, term):
        """:class:`Planes` of a stage's term (None: its bias), or None."""
        return next((one for one in self.planes if (one.parameter.stage, one.parameter.term) == (stage, term)), None)

    # Arrays and bytes

    def pack_input(self, x, targets, masks=None):
        """Image of region INPUT.

        Parameters
        ----------
        x : bfloat16 (batch, input size)
            As the model has them.
        targets : bfloat16 (batch, classes)
            As the model has its results.
        """
        graph, x, targets = self.training.graph, np.asarray(x), np.asarray(targets)
        for what, values, size in (("samples", x, graph.input_size), ("targets", targets, graph.output_size)):
            if values.dtype != bfloat16 or values.shape != (self.batch, size):
                raise ValueError(f"{what} must be bfloat16 of shape ({self.batch}, {size}), not {values.dtype} {values.shape}")
        arranged = graph.arrange_input(x).reshape(self.batch, -1)
        ordered = np.array(targets)
        if graph.output_order is not None:
            ordered[:, graph.output_order] = targets
        return self.tensors[graph.input].pack(arranged) + self.targets.pack(ordered)

    def pack_state(self, state):
        """Image of region SCRATCH from a :class:`sim.golden.training.TrainingState`."""
        parts = [
            one.pack({MASTER: np.asarray(master, np.float32), **slots})
            for one, master, slots in zip(self.planes, state.masters, state.slots)
        ]
        return b"".join(parts).ljust(self.sizes[Region.SCRATCH] * 2 * self.n, b"\0")

    def unpack_state(self, data, steps=0):
        """The state that is in region SCRATCH, after so many updates."""
        found = [one.unpack(data) for one in self.planes]
        return TrainingState([one.pop(MASTER) for one in found], found, steps)

    def unpack_logits(self, data):
        """float32 (batch, classes), as the model has them, from region OUTPUT."""
        return self.training.graph.arrange_output(self.logits.unpack(data))

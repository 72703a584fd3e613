"""The memory of a training step's program: inputs, parameters, optimizer state and learning rates.

A program from :func:`sim.compiler.step.compile_step` has these names in `tensors`:

* `(number, name)`: parameter `number` of the network, or its optimizer state. The names are
  :data:`MASTER` and the optimizer's slots;
* :func:`sim.compiler.program.factor` of a name: a factor of the optimizer, in region MODEL.

Its `memory` is a :class:`StepMemory`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..golden.arithmetic import bfloat16
from ..golden.training import TrainingState, divisor_of, target_tensors

__all__ = ["MASTER", "StepMemory", "pack_state", "unpack_states", "with_rate"]

#: Name of the parameter itself, among the names of its optimizer state.
MASTER = "master"


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The memory map of a training step, for :class:`sim.compiler.program.Program`."""

    step: Any
    network: Any
    optimizer: Any
    batch: int  # samples of a core
    masked: tuple  # Tuple of int. Stages whose results have a dropout mask.
    factor: Any  # factor of the numbers that dropout keeps

    def inputs(self, x, targets, masks=None, counted=None):
        """Returns {tensor: values} of region INPUT. Raises ValueError if an array has another shape or type, or a mask other
        values.

        Parameters
        ----------
        x : bfloat16 (batch, input size)
            Samples, in the order of the ONNX model.
        targets : bfloat16 (batch, classes)
            Targets, in the order of the ONNX model's results.
        masks : dict of int to bfloat16 (batch, height, width, channels)
            Dropout masks of stages' results, by stage number. Values are 0 or the factor of kept values.
        counted : array (batch, positions) or None
            As in :func:`sim.golden.training.step`.
        """
        graph = self.network
        x, targets = np.asarray(x), np.asarray(targets)
        for what, values, size in (("samples", x, graph.input_size), ("targets", targets, graph.output_size)):
            if values.dtype != bfloat16 or values.shape != (self.batch, size):
                raise ValueError(f"{what} must be bfloat16 of shape ({self.batch}, {size}), not {values.dtype} {values.shape}")
        values, masks = graph.arrange_inputs(x), masks or {}
        for name, number in zip(self.step.inputs[len(values) :], self.masked):
            height, width, _ = self.step.tensors[name].shape
            values[name] = self._mask(number, masks)[:, :height, :width]  # the other positions are not read
        return values | target_tensors(self.step, graph, targets, counted)

    def _mask(self, number, masks):
        stage, mask = self.network.stages[number], np.asarray(masks.get(number, ()))
        shape = (self.batch, *stage.result_size, self.network.channels(stage))
        if mask.dtype != bfloat16 or mask.shape != shape:
            raise ValueError(f"the mask of stage {stage.name} must be bfloat16 of shape {shape}, not {mask.dtype} {mask.shape}")
        if not np.isin(mask, np.array([0, self.factor], bfloat16)).all():
            raise ValueError(f"the mask of stage {stage.name} must have no numbers but 0 and {self.factor}")
        return mask


def with_rate(program, rate, step=1, counted=None):
    """Returns the contents of region MODEL for a learning rate and update number `step`, counted from 1. `counted` is as in
    :func:`sim.golden.training.step`, for the samples of all cores. Only the optimizer's tiles, and the factors of UPDATEs,
    differ."""
    divisor = divisor_of(program.memory.network, program.batch * program.cores, counted)
    return program.with_factors(program.memory.optimizer.factors(rate, divisor, step))


def pack_state(program, state, rank=0):
    """Returns the contents of region SCRATCH for core `rank` of the ring, from a :class:`sim.golden.training.TrainingState`."""
    arrays = [{MASTER: master, **slots} for master, slots in zip(state.masters, state.slots)]
    values = {(number, name): array for number, own in enumerate(arrays) for name, array in own.items()}
    return program.pack(Region.SCRATCH, values, rank)


def unpack_states(program, data, steps=0):
    """Reads the :class:`sim.golden.training.TrainingState` of each core after `steps` updates, from a list with region SCRATCH
    of each core. With a correct program, all states are equal."""
    parameters, slots = range(len(program.memory.network.parameters)), program.memory.optimizer.slots
    found = [{name: program.unpack_all(data, (number, name)) for name in (MASTER, *slots)} for number in parameters]
    return [
        TrainingState([one[MASTER][rank] for one in found], [{name: one[name][rank] for name in slots} for one in found], steps)
        for rank in range(len(data))
    ]

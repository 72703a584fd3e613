"""The memory of a training step's program: inputs, parameters, optimizer state and learning rates.

A program from :func:`sim.compiler.step.compile_step` has these names in `tensors`:

* the names in `masters` and `slots` of the step's graph: parameters and optimizer state;
* :func:`sim.compiler.program.factor` of a name: a factor of the optimizer, in region MODEL.

Its `memory` is a :class:`StepMemory`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..golden.arithmetic import bfloat16
from ..golden.training import TrainingState, divisor_of, target_tensors

__all__ = ["StepMemory", "pack_state", "unpack_states", "with_rate"]


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
        masks : dict to bfloat16 (batch, height, width, channels)
            Dropout masks of stages' results, by stage number, with values of 0 or the factor of kept values; or of inputs, by
            name.
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
        values |= {name: np.asarray(masks[name], bfloat16) for name in graph.masks if name in masks}
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
    step, values = program.memory.step, {}
    for name, master, slots in zip(step.parameters, state.masters, state.slots):
        values |= {step.masters[name]: master} | {step.slots[name][slot]: array for slot, array in slots.items()}
    return program.pack(Region.SCRATCH, values, rank)


def unpack_states(program, data, steps):
    """Reads the :class:`sim.golden.training.TrainingState` of each core after `steps` updates, from a list with region SCRATCH
    of each core. With a correct program, all states are equal."""
    step, network = program.memory.step, program.memory.network
    states = [TrainingState([], [], steps) for _ in data]
    for name, one in network.parameters.items():
        kept = {tensor: program.unpack_all(data, tensor) for tensor in (step.masters[name], *step.slots[name].values())}
        made = {id(array): array.reshape(one.initial.shape) for arrays in kept.values() for array in arrays}  # cores share some
        for rank, state in enumerate(states):
            state.masters.append(made[id(kept[step.masters[name]][rank])])
            state.slots.append({slot: made[id(kept[tensor][rank])] for slot, tensor in step.slots[name].items()})
    return states

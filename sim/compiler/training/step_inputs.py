"""The inputs of a training step's program: samples, targets, masks of dropout, and factors of the loss."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...golden.arithmetic import bfloat16
from ...golden.training import target_tensors

__all__ = ["StepMemory"]


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The memory map of a training step, for :class:`sim.compiler.program.Program`.

    Parameters
    ----------
    step : sim.ir.step.StepGraph
    training : sim.ir.training.TrainingGraph
    optimizer : sim.ir.optimizers.Sgd or Adam
    batch : int
        Samples of a core.
    masked : tuple of int
        Stages whose results have a dropout mask.
    factor : bfloat16 or None
        Factor of the numbers that dropout keeps.
    """

    step: Any
    training: Any
    optimizer: Any
    batch: int
    masked: tuple
    factor: Any

    @property
    def network(self):
        return self.training.graph

    @property
    def output(self):
        return self.step.output

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
        shape = (self.batch, *stage.result_size, stage.channels)
        if mask.dtype != bfloat16 or mask.shape != shape:
            raise ValueError(f"the mask of stage {stage.name} must be bfloat16 of shape {shape}, not {mask.dtype} {mask.shape}")
        if not np.isin(mask, np.array([0, self.factor], bfloat16)).all():
            raise ValueError(f"the mask of stage {stage.name} must have no numbers but 0 and {self.factor}")
        return mask

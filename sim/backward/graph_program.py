"""Programs of training steps that :mod:`sim.compiler.training` compiles, for the trainer."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.training.compile import MatrixProgram, NotMatrices, compile_graph
from ..golden.training import TrainingState, divisor_of, step_graph, target_tensors

__all__ = ["GraphProgram", "compile_step_graph"]

#: Properties of a GraphProgram that its MatrixProgram has.
_SAME = (*("batch", "config", "cores", "instructions", "model", "ops", "predicted_cycles", "ring_words", "sizes"), "useful_macs")


@dataclass(frozen=True, eq=False)
class GraphProgram:
    """The program of a training step on one core or on each core of a ring, with the methods of
    :class:`sim.backward.step_program.StepProgram`.

    Parameters
    ----------
    program : MatrixProgram
    training : sim.ir.training.TrainingGraph
    optimizer : sim.ir.optimizers.Sgd or Adam
    """

    program: MatrixProgram = field(repr=False)
    training: Any = field(repr=False)
    optimizer: Any = field(repr=False)

    def __getattr__(self, name):
        if name in _SAME:
            return getattr(self.program, name)
        raise AttributeError(name)

    def with_rate(self, rate, step=1, counted=None):
        """Returns the contents of region MODEL for a learning rate and update number `step`, counted from 1. `counted` is as in
        :func:`sim.golden.training.step`, for the samples of all cores."""
        divisor = divisor_of(self.training, self.program.batch * self.program.cores, counted)
        return self.program.with_factors(self.optimizer.factors(rate, divisor, step))

    def pack_input(self, x, targets, masks=None, counted=None):
        """Returns the contents of region INPUT, from bfloat16 samples (batch, input size) and targets (batch, output size) in the
        order of the ONNX model. With dropout, `masks` are from :meth:`sim.golden.dropout.Dropout.masks`."""
        graph, step = self.training.graph, self.program.step
        values = graph.arrange_inputs(x)
        values |= dict(zip(step.inputs[len(values) :], (masks[number] for number in sorted(masks or {}))))
        return self.program.pack(Region.INPUT, values | target_tensors(step, graph, targets, counted))

    def pack_state(self, state, rank=0):
        """Returns the contents of region SCRATCH, from a :class:`sim.golden.training.TrainingState`. They are equal on all
        cores."""
        step, values = self.program.step, {}
        for name, master, slots in zip(step.parameters, state.masters, state.slots):
            shape = step.tensors[name].shape
            values[name] = master.reshape(1, *shape)
            values |= {tensor: slots[slot].reshape(1, *shape) for slot, tensor in step.slots[name].items()}
        return self.program.pack(Region.SCRATCH, values)

    def unpack_states(self, data, steps=0):
        """Reads the :class:`sim.golden.training.TrainingState` of each core after `steps` updates, from a list with region
        SCRATCH of each core."""
        return [self._unpack_state(scratch, steps) for scratch in data]

    def _unpack_state(self, scratch, steps):
        step, masters, slots = self.program.step, [], []
        for name, one in zip(step.parameters, self.training.parameters):
            masters.append(self.program.unpack(scratch, name).reshape(one.initial.shape))
            kept = step.slots[name].items()
            slots.append({slot: self.program.unpack(scratch, tensor).reshape(one.initial.shape) for slot, tensor in kept})
        return TrainingState(masters, slots, steps)

    def unpack_images(self, data):
        """Returns None for each parameter, because the update has overwritten the values that the last step used."""
        return [None] * len(self.training.parameters)

    def unpack_logits(self, data):
        """Reads the logits from the bytes of region OUTPUT. Returns float32 (batch, output size), in the order of the ONNX
        model's results."""
        values = self.program.unpack(data, self.program.step.output)
        return self.training.graph.arrange_output(values.astype(np.float32, copy=False))


def compile_step_graph(training, optimizer, config, batch, dropout, cores, refusal):
    """Compiles one training step for `batch` samples per core. The parameters are as in
    :func:`sim.backward.compile.compile_step`. Raises CompileError: the error `refusal` if the step has other sums than products
    of matrices."""
    masked = tuple(sorted(dropout.stages(training))) if dropout else ()
    step = step_graph(training, optimizer, masked, cores, sharded=False)
    try:
        return GraphProgram(compile_graph(step, config, batch, cores), training, optimizer)
    except NotMatrices:
        raise refusal from None

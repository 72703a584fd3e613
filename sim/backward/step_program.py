"""The program of a training step, the images of its host memory, and its cost."""

from dataclasses import dataclass, field
from typing import Any

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.ring_exchange import ring_words
from ..compiler.image import encoded, with_tiles
from ..compiler.program import check_regions
from .memory import StepMemory
from .step_emitter import Constants

__all__ = ["StepProgram", "make_step_program"]


@dataclass(frozen=True, eq=False)
class StepProgram:
    """The compiled program of a training step, from :func:`sim.backward.compile.compile_step`.

    Parameters
    ----------
    model : bytes
        Contents of region MODEL. Execution begins at offset 0.
    instructions : int
        Number of instructions, including HALT.
    batch : int
        Number of samples that a core processes.
    cores : int
        Number of cores in the ring. Each core executes this program with its own host memory.
    useful_macs : int
        Multiplications that a step needs on a core: forward pass, gradients of weights, and data gradients except the input's.
    predicted_cycles : int
        Cycles of a step with the default memory latency, predicted by :mod:`sim.compiler.timing.model`.
    ops : tuple of Op
        The instructions, without HALT.
    """

    model: bytes
    instructions: int
    batch: int
    cores: int
    useful_macs: int
    predicted_cycles: int
    config: Config = field(repr=False)
    optimizer: Any = field(repr=False)
    memory: StepMemory = field(repr=False)
    constants: Constants = field(repr=False)
    ops: tuple = field(repr=False)

    @property
    def sizes(self):
        """Returns the size of each region in bytes, {region: bytes}."""
        sizes = {region: vectors * self.config.vector_bytes for region, vectors in self.memory.sizes.items()}
        return {Region.MODEL: len(self.model), **sizes}

    def with_rate(self, rate, step=1):
        """Returns the contents of region MODEL for a learning rate and update number `step`, counted from 1. Only the optimizer's
        tiles differ."""
        factors, constants = self.optimizer.factors(rate, self.batch * self.cores, step), self.constants
        tiles = [
            (constants.vector(name), constants.tile(name, value)) for name, value in factors.items() if name in constants.names
        ]
        return with_tiles(self.model, self.instructions, self.config, tiles)

    def pack_input(self, x, targets, masks=None):
        """Returns the contents of region INPUT, from bfloat16 samples (batch, input size) and targets (batch, classes) in the
        order of the ONNX model. With dropout, `masks` are from :meth:`sim.golden.dropout.Dropout.masks`."""
        return self.memory.pack_input(x, targets, masks)

    def pack_state(self, state, rank=0):
        """Returns the contents of region SCRATCH for core `rank` of the ring, from a
        :class:`sim.golden.training.TrainingState`."""
        return self.memory.pack_state(state, rank)

    def unpack_states(self, data, steps=0):
        """Reads the :class:`sim.golden.training.TrainingState` of each core after `steps` updates; see
        :meth:`sim.backward.memory.StepMemory.unpack_states`."""
        return self.memory.unpack_states(data, steps)

    def unpack_images(self, data):
        """Reads the parameters that the last step used on a core; see :meth:`sim.backward.memory.StepMemory.unpack_images`."""
        return self.memory.unpack_images(data)

    @property
    def ring_words(self):
        """Returns the number of 32-bit words that each core sends in a step."""
        return ring_words(self.ops, self.cores, self.config.n)

    def unpack_logits(self, data):
        """Reads the logits from the bytes of region OUTPUT. Returns float32 (batch, classes), in the order of the ONNX model's
        results."""
        return self.memory.unpack_logits(data)


def make_step_program(training, optimizer, config, memory, constants, ops, cycles):
    """Returns the :class:`StepProgram` with the given instructions, which are in their final order and take `cycles` cycles."""
    words = encoded(ops, config, (len(ops) + 1) * config.instruction_bytes)
    model = b"".join([*words, constants.pack()])
    made = StepProgram(
        model=model,
        instructions=len(words),
        batch=memory.batch,
        cores=memory.cores,
        useful_macs=memory.batch * useful_macs(training),
        predicted_cycles=cycles,
        config=config,
        optimizer=optimizer,
        memory=memory,
        constants=constants,
        ops=tuple(ops),
    )
    check_regions({region.name: size for region, size in made.sizes.items()})
    return made


def useful_macs(training):
    """Returns the number of multiplications that one sample needs in a step."""
    graph = training.graph
    total = sum(map(graph.macs, graph.stages))
    for one in training.parameters:
        if one.term is not None:
            height, width = graph.stages[one.stage].sums_size
            total += height * width * one.initial.size
    for one in training.gradients:
        for part in one.terms:
            height, width = graph.stages[part.stage].sums_size
            total += height * width * graph.stages[part.stage].terms[part.term].weights.size
    return total

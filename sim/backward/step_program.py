"""The program of a training step, its images, and its cost."""

from dataclasses import dataclass, field
from typing import Any

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region

from ..compiler.image import encoded
from ..compiler.program import check_regions
from ..golden.ring import words_sent
from .memory import StepMemory
from .step_emitter import Constants

__all__ = ["StepProgram", "make_step"]


@dataclass(frozen=True, eq=False)
class StepProgram:
    """Result of :func:`sim.backward.compile.compile_step`.

    Parameters
    ----------
    model : bytes
        Image of region MODEL. Execution begins at offset 0.
    instructions : int
        Instructions in it, HALT included.
    batch : int
        Samples of a core.
    cores : int
        Cores of the ring. Each core runs this program with its own host memory.
    useful_macs : int
        Multiplications that the step needs on a core: forward, gradients of weights, and data gradients except the input's.
    predicted_cycles : int
        Cycles of the step with the default memory latency, by :mod:`sim.compiler.timing.model`.
    ops : tuple of Op
        The instructions without HALT.
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
        """Sizes as {region: bytes} of all regions."""
        sizes = {region: vectors * self.config.vector_bytes for region, vectors in self.memory.sizes.items()}
        return {Region.MODEL: len(self.model), **sizes}

    def with_rate(self, rate, step=1):
        """Returns the image of region MODEL for a learning rate and update number `step`, from 1. It differs only in the
        optimizer's tiles."""
        first = self.instructions * self.config.instruction_bytes
        model, size = bytearray(self.model), self.config.vector_bytes
        for name, value in self.optimizer.factors(rate, self.batch * self.cores, step).items():
            if name in self.constants.names:
                tile = self.constants.tile(name, value)
                place = first + self.constants.vector(name) * size
                model[place : place + len(tile)] = tile
        return bytes(model)

    def pack_input(self, x, targets, masks=None):
        """Returns the image of region INPUT: bfloat16 samples (batch, input size) and targets (batch, classes) in the model's
        order. With dropout it includes masks from :meth:`sim.golden.dropout.Dropout.masks`."""
        return self.memory.pack_input(x, targets, masks)

    def pack_state(self, state, rank=0):
        """Returns the image of region SCRATCH of core `rank` in the ring from a :class:`sim.golden.training.TrainingState`."""
        return self.memory.pack_state(state, rank)

    def unpack_states(self, data, steps=0):
        """Returns the :class:`sim.golden.training.TrainingState` of each core after `steps` updates, see
        :meth:`sim.backward.memory.StepMemory.unpack_states`."""
        return self.memory.unpack_states(data, steps)

    def unpack_images(self, data):
        """Returns the parameters that the last step read on a core; see :meth:`sim.backward.memory.StepMemory.unpack_images`."""
        return self.memory.unpack_images(data)

    @property
    def ring_words(self):
        """Number of 32-bit words that each core sends in a step."""
        fields = [op.fields for op in self.ops if op.opcode is Opcode.RING]
        return sum(words_sent(one["mode"], self.cores, one["segment"] * one["rounds"], self.config.n) for one in fields)

    def unpack_logits(self, data):
        """Returns the logits, float32 (batch, classes), in the model's order, from region OUTPUT."""
        return self.memory.unpack_logits(data)


def make_step(training, optimizer, config, memory, constants, ops, cycles):
    """Makes the :class:`StepProgram` of instructions in their final order, which takes `cycles` cycles."""
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
    """Returns the number of multiplications for one sample."""
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

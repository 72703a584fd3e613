"""The compiler's output: instructions, memory images, sizes and costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import disassemble
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, Region

from ..golden.ring import words_sent
from ..rtl.host_memory import DEFAULT_HOST, HostMemory
from .timing.model import simulate

__all__ = ["Cost", "Program", "cost_of", "factor", "host_vectors"]


def host_vectors(ops, use, n):
    """Returns the number of vectors that the instructions `ops` read from host memory (`use` = "r") or write to it ("w")."""
    records = ((op, INSTRUCTIONS[op.opcode]) for op in ops)
    return sum(record.moved(n, op.fields) for op, record in records if record.transfer and record.transfer.use == use)


@dataclass(frozen=True)
class Cost:
    """The cost of a program."""

    cycles: int  # cycles of one run by :mod:`sim.compiler.timing.model`
    #: passes, compute_cycles: Number of passes of the array, and cycles in which the array accepts rows or waits while a tile of
    #: weights shifts in.
    passes: int
    compute_cycles: int
    #: read_beats, write_beats: Number of beats that one run of the program transfers on the bus, in each direction.
    read_beats: int
    write_beats: int
    least_beats: int = 0  # Lower bound of the beats read: input, weights and biases, each once. 0 for training steps.


def cost_of(ops, config, cycles, least_beats=0):
    """Returns the :class:`Cost` of instructions that take `cycles` cycles."""
    matmuls, beats = [op for op in ops if op.opcode is Opcode.MATMUL], config.beats_per_vector
    compute_cycles = sum(op.array_cycles(config.tile_cycles) for op in matmuls)
    read = host_vectors(ops, "r", config.n) * beats + (len(ops) + 1) * config.instruction_bytes // config.bus_bytes
    written = host_vectors(ops, "w", config.n) * beats
    return Cost(cycles, sum(op.passes for op in matmuls), compute_cycles, read, written, least_beats)


def first_constant(instructions, config):
    """Returns the byte offset of the constants in region MODEL, behind a number of instructions. With this alignment, no page
    boundary splits a burst within a tile of weights."""
    align = min(config.n * config.vector_bytes, 4096)
    return -(-instructions * config.instruction_bytes // align) * align


def factor(name):
    """Returns the name, in `tensors` of a program, of a factor of the optimizer."""
    return "factor", name


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program: a network for a batch, from :func:`sim.compiler.compile.compile_network`, or a training step, from
    :func:`sim.compiler.step.compile_step`.

    Members
    -------
    ops : tuple of Op
        The instructions without HALT, each with the layer or stage that it belongs to.
    """

    model: bytes  # Contents of region MODEL. Execution begins at offset 0.
    instructions: int  # number of instructions, HALT included
    batch: int  # number of samples that a core processes
    sizes: dict  # Dict of Region to int. Size of each region in bytes.
    useful_macs: int  # multiplications that a core needs for its batch, excluding padding
    cost: Cost
    config: Config = field(repr=False)
    tensors: dict = field(repr=False)  # Dict of name to HostTensor. Tensors that the host writes or reads.
    #: The compiler's memory map. It has `network`, the compiled :class:`.Graph`, and `inputs(...)`, which returns {name in
    #: `tensors`: array} for the arguments of :meth:`pack_input`.
    memory: Any = field(repr=False)
    emit: Callable = field(repr=False)  # Callable. Called without arguments; returns the value of `ops`.
    plan: tuple = ()  # Tuple of str. Description of the jobs of each stage of a network.
    cores: int = 1  # Number of cores in the ring. Each core executes this program with its own host memory.
    host: HostMemory = DEFAULT_HOST  # the host memory that `cost` assumes
    checked: bool = False  # True if a model of the core has run this program on random samples, with the golden model's results

    @cached_property
    def ops(self):
        return tuple(self.emit())

    @property
    def predicted_cycles(self):
        return self.cost.cycles

    @property
    def bound(self):
        """Returns a lower bound of the cycles with this array and bus: the larger of array cycles and bus beats, each alone. Of a
        training step, all beats of this program count."""
        beats = (self.cost.least_beats,) if self.cost.least_beats else (self.cost.read_beats, self.cost.write_beats)
        return max(self.cost.compute_cycles, self.host.cycles(self.config, *beats))

    def with_host(self, host):
        """Returns the same program with the cycles that it takes with another :class:`.HostMemory`."""
        if host == self.host:
            return self
        cycles = simulate(self.ops, self.config, host, cores=self.cores).cycles
        return replace(self, host=host, cost=replace(self.cost, cycles=cycles))

    @property
    def ring_words(self):
        """Returns the number of 32-bit words that each core of a ring sends in a run."""
        fields = [op.fields for op in self.ops if op.opcode is Opcode.RING]
        return sum(words_sent(one["mode"], self.cores, one["segment"] * one["rounds"], self.config.n) for one in fields)

    @cached_property
    def listing(self):
        """Returns the disassembled program, one instruction per line."""
        return disassemble(self.model, self.config.instruction_bytes)

    # Arrays and bytes

    def _write(self, image, values, rank=0):
        rows = np.frombuffer(image, "<u2").reshape(-1, self.config.n)
        for name, array in values.items():
            self.tensors[name].write(rows, array, rank)

    def pack(self, region, values, rank=0):
        """Returns the contents of a region for core `rank` of a ring, from {name in `tensors`: array}. The rest is zeros."""
        image = bytearray(self.sizes[region])
        assert all(self.tensors[name].region is region for name in values)
        self._write(image, values, rank)
        return bytes(image)

    def with_factors(self, values):
        """Returns the contents of region MODEL with other factors of the optimizer, {name: value}: in tiles of constants, and in
        the fields of UPDATEs."""
        first = first_constant(self.instructions, self.config)
        instructions, constants = bytearray(self.model[:first]), bytearray(self.model[first:])
        self._write(constants, {factor(name): value for name, value in values.items() if factor(name) in self.tensors})
        words = np.frombuffer(instructions, "<u2").reshape(-1, self.config.instruction_bytes // 2)
        updates = np.flatnonzero(words[:, 0] & 0xFF == Opcode.UPDATE.value)
        for one in INSTRUCTIONS[Opcode.UPDATE].fields if len(updates) else ():
            if one.name in values:
                words[updates, one.first // 16] = values[one.name].view(np.uint16)
        return bytes(instructions + constants)

    def unpack_all(self, data, name):
        """Returns a tensor of each core, from a list with the bytes of its region on each core."""
        tensor, n = self.tensors[name], self.config.n
        return tensor.read([np.frombuffer(own[: self.sizes[tensor.region]], "<u2").reshape(-1, n) for own in data])

    def unpack(self, data, name):
        """Returns a tensor from the bytes of its region."""
        return self.unpack_all([data], name)[0]

    def pack_input(self, *arrays, **options):
        """Returns the contents of region INPUT. For a network: from bfloat16 samples of shape (up to `batch`, input size). For a
        training step: from samples, targets, masks of dropout, and the counted positions; see
        :meth:`sim.compiler.step_state.StepMemory.inputs`."""
        return self.pack(Region.INPUT, self.memory.inputs(*arrays, **options))

    def unpack_output(self, data):
        """Returns the results in an image of region OUTPUT: float32 (batch, output size), in the order of the ONNX model."""
        graph = self.memory.network
        return graph.arrange_output({name: self.unpack(data, name)[: self.batch] for name in graph.outputs})

"""What a compiler makes: instructions, memory images, sizes, and what they will cost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import decode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode

__all__ = ["CompileError", "Program", "check_regions", "disassemble", "host_vectors"]


class CompileError(ValueError):
    """A network that this configuration can't run; one line that names the parameter and what it would take."""


def check_regions(sizes):
    """Refuses regions, names to bytes, that offsets of 32 bits do not reach. Raises CompileError."""
    for name, size in sizes.items():
        if size >= 1 << 32:
            raise CompileError(f"region {name} would take {size} bytes, but offsets have 32 bits; use a smaller batch or network")


def host_vectors(ops, use, n):
    """Vectors that instructions read from host memory (`use` r) or write to it (w)."""
    records = ((op, INSTRUCTIONS[op.opcode]) for op in ops)
    return sum(op.rows * record.vectors(n, op.fields) for op, record in records if record.transfer and record.transfer.use == use)


@dataclass(frozen=True)
class Program:
    """What :func:`compile_network` makes.

    Parameters
    ----------
    model : bytes
        Image of region MODEL. Execution begins at offset 0.
    instructions : int
        Instructions in it, HALT included.
    input_bytes, output_bytes, scratch_bytes : int
        Sizes of the other regions.
    useful_macs : int
        Multiplications that the network needs for the whole batch, padding left out.
    passes, compute_cycles : int
        Passes of the array, and cycles in which it takes rows or can't because a tile still shifts in.
    read_beats, write_beats : int
        Bus beats of the run.
    least_beats : int
        Bus beats that any schedule needs to read: input, weights and biases once.
    predicted_cycles : int
        Cycles of the run with the default memory latency, by :mod:`sim.compiler.timing.model`.
    plan : object
        The choices made.
    memory : object
        With `pack_input` and `unpack_output`.
    emit : callable
        Returns `ops`.

    Members
    -------
    ops : tuple of Op
        The instructions, HALT left out, with the layer or stage that each belongs to.
    """

    model: bytes
    instructions: int
    input_bytes: int
    output_bytes: int
    scratch_bytes: int
    batch: int
    input_size: int
    output_size: int
    useful_macs: int
    passes: int
    compute_cycles: int
    read_beats: int
    write_beats: int
    least_beats: int
    predicted_cycles: int
    plan: object
    config: Config = field(repr=False)
    memory: Any = field(repr=False)
    emit: Callable = field(default=tuple, repr=False)

    @cached_property
    def ops(self):
        return tuple(self.emit())

    def pack_input(self, x):
        """Image of region INPUT for bfloat16 samples (up to `batch`, input size)."""
        return self.memory.pack_input(x)

    def unpack_output(self, data):
        """float32 (batch, output size) from region OUTPUT."""
        return self.memory.unpack_output(data)

    @property
    def bound(self):
        """Cycles that no schedule of this array and bus goes below: max(compute, bus beats), each as if alone."""
        return max(self.compute_cycles, self.least_beats)

    @cached_property
    def listing(self):
        """The instructions, one a line."""
        return disassemble(self.model[: self.instructions * self.config.instruction_bytes], self.config)


def disassemble(model, config):
    """One line for every instruction of an image up to its end or HALT, with the fields that are not 0."""
    lines = []
    for pc in range(0, len(model) - 31, config.instruction_bytes):
        word = int.from_bytes(model[pc : pc + 32], "little")
        try:
            opcode, fields = decode(word)
        except ValueError:
            lines.append(f"{pc:6x}  ILLEGAL {word:#x}")
            break
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value)
        lines.append(f"{pc:6x}  {opcode.name:12} {shown}".rstrip())
        if opcode is Opcode.HALT:
            break
    return "\n".join(lines)

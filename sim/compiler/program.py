"""The compiler's output: instructions, memory images, sizes and estimated cycles."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import decode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode

__all__ = ["CompileError", "Program", "check_regions", "check_ring", "check_unit", "disassemble", "host_vectors"]


class CompileError(ValueError):
    """An error about a network that this configuration cannot run. The message is one line with the parameter at fault and the
    value needed."""


def check_regions(sizes):
    """Raises CompileError if a region is too large for offsets of 32 bits. `sizes` is `{name: bytes}`."""
    for name, size in sizes.items():
        if size >= 1 << 32:
            raise CompileError(f"region {name} needs {size} bytes, but offsets have 32 bits; use a smaller batch or network")


def check_unit(config, unit, needed, subject):
    """Raises CompileError if `subject` needs a unit that the core lacks. `unit` is the name of a field of Config."""
    if needed and not getattr(config, unit):
        raise CompileError(f"{subject} needs a core with {unit}; set it in its configuration")


def check_ring(config, cores):
    """Raises CompileError if several cores lack the ring."""
    if cores > 1 and not config.ring:
        raise CompileError(f"{cores} cores need the ring; set it in their configuration (--ring)")


def host_vectors(ops, use, n):
    """Returns the number of vectors that the instructions `ops` read from host memory (`use` = "r") or write to it ("w")."""
    records = ((op, INSTRUCTIONS[op.opcode]) for op in ops)
    return sum(op.rows * record.vectors(n, op.fields) for op, record in records if record.transfer and record.transfer.use == use)


@dataclass(frozen=True)
class Program:
    """A compiled program, made by :func:`compile_network`.

    Parameters
    ----------
    model : bytes
        Image of region MODEL. Execution begins at offset 0.
    instructions : int
        Number of instructions, HALT included.
    input_bytes, output_bytes, scratch_bytes : int
        Sizes of regions INPUT, OUTPUT and SCRATCH, in bytes.
    useful_macs : int
        Multiplications that the network needs for the whole batch, excluding padding.
    passes, compute_cycles : int
        Number of passes of the array, and cycles in which the array accepts rows or waits while a tile of weights shifts in.
    read_beats, write_beats : int
        Number of beats that one run of the program transfers on the bus, in each direction.
    least_beats : int
        Lower bound of the beats read: input, weights and biases, each once.
    predicted_cycles : int
        Cycles of one run by :mod:`sim.compiler.timing.model`, with the default latency of host memory.
    plan : object
        Tiling of each stage.
    memory : object
        Converts samples and results: has `pack_input` and `unpack_output`.
    emit : callable
        Called without arguments; returns the value of `ops`.

    Members
    -------
    ops : tuple of Op
        The instructions without HALT, each with the layer or stage that it belongs to.
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
        """Returns the bytes of region INPUT for bfloat16 samples of shape (up to `batch`, input size)."""
        return self.memory.pack_input(x)

    def unpack_output(self, data):
        """Returns the results in an image of region OUTPUT: float32 (batch, output size)."""
        return self.memory.unpack_output(data)

    @property
    def bound(self):
        """Returns a lower bound of the cycles with this array and bus: the larger of array cycles and bus beats, as if each ran
        alone."""
        return max(self.compute_cycles, self.least_beats)

    @cached_property
    def listing(self):
        """Returns the disassembled program, one instruction per line."""
        return disassemble(self.model[: self.instructions * self.config.instruction_bytes], self.config)


def disassemble(model, config):
    """Disassembles an image up to its first HALT. Returns one line per instruction, with the fields that are not 0."""
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

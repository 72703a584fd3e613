"""The compiler: network, configuration and batch -> program, memory images and what they will cost."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hw.isa import Opcode, decode, encode

from .memory_map import MemoryMap
from .planner import plans, refinements
from .schedule import Op, Schedule
from .timing import MATMUL, estimate, simulate

__all__ = ["CompileError", "Program", "compile_network", "disassemble"]

_SIMULATED_PASSES = 60_000      # passes, over all candidates, up to which schedules are ordered and compared by simulation
_CANDIDATES = 8
_REFINING_PASSES = 20_000       # the same for each of the refinements
_MOST_TILES = 65_535            # in one LOAD_WEIGHTS
_STARTING = 4                   # LOAD_WEIGHTS at the start of a run that bring one block's tiles each, but for the last


class CompileError(ValueError):
    """A network that this configuration can't run; one line that names the parameter and what it would take."""


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
    predicted_cycles : int or None
        Cycles of the run with the default memory latency, by :mod:`sim.timing`; None if the program is too long.
    plan : Plan
        The choices made.
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
    predicted_cycles: int | None
    plan: object
    config: object = field(repr=False)
    memory: MemoryMap = field(repr=False)

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
        return disassemble(self.model[:self.instructions * self.config.instruction_bytes], self.config)


def disassemble(model, config):
    """One line for every instruction of an image up to its end or HALT, with the fields that are not 0."""
    lines = []
    for pc in range(0, len(model) - 31, config.instruction_bytes):
        word = int.from_bytes(model[pc:pc + 32], "little")
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


def compile_network(network, config, batch):
    """Compiles for batches of `batch` samples.

    Raises
    ------
    CompileError
        If even the smallest tiles of a layer do not fit, or the images leave the 32-bit offsets.
    """
    if not isinstance(batch, (int, np.integer)) or batch < 1:
        raise CompileError(f"batch must be an integer of at least 1, not {batch!r}")
    for layer in network.layers:
        if layer.function not in ("none", "relu"):
            raise CompileError(f"layer {layer.name}: function must be none or relu, not {layer.function!r}")
    candidates = plans(network, config, int(batch))
    if not candidates:
        raise CompileError(f"unified_buffer_depth = {config.unified_buffer_depth}: the least that any tiling of "
                           f"{network.name} needs is 4 vectors")
    return _program(network, config, _best(network, config, candidates))


@dataclass
class _Trial:
    """A plan carried out: instructions in order, places of the groups of weights, cycles if they were counted."""

    schedule: Schedule
    ops: list
    image: tuple
    cycles: int | None


def _try(network, config, plan, short):
    schedule = Schedule(config, MemoryMap(network, config.n, plan.chunks), plan)
    ops, image = _with_weights(schedule.ops)
    timeline = simulate(ops, config, ideal=True) if short else estimate(ops, config)
    ops = _ordered(ops, timeline, plan.eager)
    return _Trial(schedule, ops, image, simulate(ops, config).cycles if short else None)


def _best(network, config, candidates):
    """The most promising plans by simulation, then the best one with its start and its end refined."""
    budget, best = _SIMULATED_PASSES, None
    for plan, passes in candidates[:_CANDIDATES]:
        short = passes <= budget
        if best is None or short:
            budget -= passes
            trial = _try(network, config, plan, short)
            if best is None or best.cycles is not None and trial.cycles < best.cycles:
                best, best_passes = trial, passes
    for changes in refinements(config, best.schedule.plan) if best.cycles is not None else ():
        plan = best.schedule.plan
        for change in changes[:_REFINING_PASSES // best_passes]:
            trial = _try(network, config, replace(plan, **change), True)
            if trial.cycles < best.cycles:
                best = trial
    return best


def _with_weights(ops):
    """The instructions with LOAD_WEIGHTS put in front of the first that needs them, and the groups of tiles in the order
    in which the image holds them: {(layer, column, columns): first tile}."""
    image, size = {}, 0
    result, current, end = [], None, None
    started = 0
    for op in ops:
        if op.opcode is Opcode.LOAD and started < _STARTING:
            current = None          # weights of one block only
            started += 1
        if op.tiles is not None:
            *group, before, count = op.tiles
            group = tuple(group)
            if group not in image:
                image[group] = size
                size += op.group_tiles
            first = image[group] + before
            while count:
                if current is None or first != end or current.rows == _MOST_TILES:
                    current = Op(Opcode.LOAD_WEIGHTS, {"offset": first, "rows": 0})
                    end = first
                    result.append(current)
                part = min(count, _MOST_TILES - current.rows)
                current.rows += part
                first, end, count = first + part, end + part, count - part
        result.append(op)
    for op in result:
        if op.opcode is Opcode.LOAD_WEIGHTS:
            op.fields["rows"] = op.rows
    return result, (image, size)


def _ordered(ops, timeline, eager):
    """The instructions by the time at which they would begin if dispatch cost nothing.

    Then nothing that could begin waits in line behind something that can't. Weights stay ahead of their use. At the
    start, the first blocks of operands are asked for before the flood of weights that fills the FIFO.
    """
    keys = [(start, index) for index, start in enumerate(timeline.starts)]
    loads = [index for index, op in enumerate(ops[:64]) if op.opcode is Opcode.LOAD]
    weights = [index for index, op in enumerate(ops) if op.opcode is Opcode.LOAD_WEIGHTS]
    for number, index in enumerate(weights[:_STARTING]):
        if number + eager < len(loads):
            keys[index] = max(keys[index], (keys[loads[number + eager]][0], loads[number + eager] + 0.5))
    for before, index in zip(weights, weights[1:]):
        keys[index] = max(keys[index], (keys[before][0], index))
    later = max(keys)
    for index in reversed(range(len(ops))):
        if ops[index].unit == MATMUL:
            later = min(later, (keys[index][0], index - 0.5))
        elif ops[index].opcode is Opcode.LOAD_WEIGHTS:
            keys[index] = later = min(keys[index], later)
    return [ops[index] for index in sorted(range(len(ops)), key=lambda index: (keys[index], index))]


def _program(network, config, trial):
    schedule, ops, (groups, tiles) = trial.schedule, trial.ops, trial.image
    memory, n = schedule.memory, config.n
    step = config.instruction_bytes
    biases = (len(ops) + 1) * step
    tile = 2 * n * n
    align = min(tile, 4096)     # then no burst ends within a tile because of a page's end
    weights = -(-(biases + memory.bias_rows * 4 * n) // align) * align
    size = weights + tiles * tile
    for name, value in (("MODEL", size), ("INPUT", memory.input_bytes), ("OUTPUT", memory.output_bytes),
                        ("SCRATCH", schedule.scratch_bytes)):
        if value >= 1 << 32:
            raise CompileError(f"region {name} would take {value} bytes, but offsets have 32 bits; use a smaller batch "
                               f"or network")
    words = []
    for op in ops:
        fields = dict(op.fields)
        if op.opcode is Opcode.LOAD_BIAS:
            fields["offset"] += biases
        elif op.opcode is Opcode.LOAD_WEIGHTS:
            fields["offset"] = weights + fields["offset"] * tile
        words.append(encode(op.opcode, **fields).to_bytes(step, "little"))
    words.append(encode(Opcode.HALT).to_bytes(step, "little"))
    layers = {}
    parts = []
    for layer, column, count in groups:
        if layer not in layers:
            layers = {layer: memory.weights(layer)}
        parts.append(np.ascontiguousarray(layers[layer][:, column:column + count]).tobytes())
    model = b"".join([b"".join(words + [memory.biases()]).ljust(weights, b"\0"), *parts])
    assert len(model) == size

    matmuls = [op for op in ops if op.unit == MATMUL]
    beats = config.beats_per_vector
    vectors = {Opcode.LOAD: 1, Opcode.LOAD_BIAS: 2, Opcode.LOAD_WEIGHTS: n}
    read = sum(op.rows * vectors[op.opcode] for op in ops if op.opcode in vectors) * beats
    tile_count = sum(a * b for a, b in zip(memory.tiles, memory.tiles[1:]))
    return Program(
        model=model, instructions=len(words), batch=memory.batch, plan=schedule.plan, config=config, memory=memory,
        input_bytes=memory.input_bytes, output_bytes=memory.output_bytes, scratch_bytes=schedule.scratch_bytes,
        input_size=memory.widths[0], output_size=memory.widths[-1],
        useful_macs=memory.batch * sum(layer.weights.size for layer in network.layers),
        passes=sum(op.passes for op in matmuls),
        compute_cycles=tile_count * max(memory.batch, n),
        read_beats=read + len(words) * (step // config.bus_bytes),
        write_beats=sum(op.rows for op in ops if op.opcode is Opcode.STORE) * beats,
        least_beats=(tile_count * n + memory.tiles[0] * memory.batch + 2 * memory.bias_rows) * beats,
        predicted_cycles=trial.cycles)

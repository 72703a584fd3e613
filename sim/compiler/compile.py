"""The compiler: network, configuration and batch -> program, memory images and what they will cost."""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, encode

from ..ir.graph import Graph
from .image import compile_graph
from .memory_map import MemoryMap
from .program import CompileError, Program, check_regions, disassemble, host_vectors
from .residency import Schedule
from .scheduling import ordered, with_weights
from .search import plans, refinements
from .timing import MATMUL, estimate, simulate

__all__ = ["CompileError", "Program", "compile_network", "disassemble"]

_SIMULATED_PASSES = 60_000      # passes, over all candidates, up to which schedules are ordered and compared by simulation
_CANDIDATES = 8
_REFINING_PASSES = 20_000       # the same for each of the refinements


def compile_network(network, config, batch):
    """Compiles for batches of `batch` samples.

    Raises
    ------
    CompileError
        If even the smallest tiles of a layer do not fit, or the images leave the 32-bit offsets.
    """
    if not isinstance(batch, (int, np.integer)) or batch < 1:
        raise CompileError(f"batch must be an integer of at least 1, not {batch!r}")
    if isinstance(network, Graph):
        return compile_graph(network, config, int(batch))
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
    ops, image = with_weights(schedule.ops, across=True)
    timeline = simulate(ops, config, ideal=True) if short else estimate(ops, config)
    ops = ordered(ops, timeline, plan.eager)
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


def _program(network, config, trial):
    schedule, ops, (groups, tiles) = trial.schedule, trial.ops, trial.image
    memory, n = schedule.memory, config.n
    step = config.instruction_bytes
    biases = (len(ops) + 1) * step
    tile = 2 * n * n
    align = min(tile, 4096)     # then no burst ends within a tile because of a page's end
    weights = -(-(biases + memory.bias_rows * 4 * n) // align) * align
    size = weights + tiles * tile
    check_regions({"MODEL": size, "INPUT": memory.input_bytes, "OUTPUT": memory.output_bytes, "SCRATCH": schedule.scratch_bytes})
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
    read = host_vectors(ops, "r", n) * beats
    tile_count = sum(a * b for a, b in zip(memory.tiles, memory.tiles[1:]))
    return Program(
        model=model, instructions=len(words), batch=memory.batch, plan=schedule.plan, config=config, memory=memory,
        input_bytes=memory.input_bytes, output_bytes=memory.output_bytes, scratch_bytes=schedule.scratch_bytes,
        input_size=memory.widths[0], output_size=memory.widths[-1],
        useful_macs=memory.batch * sum(layer.weights.size for layer in network.layers),
        passes=sum(op.passes for op in matmuls),
        compute_cycles=tile_count * max(memory.batch, n),
        read_beats=read + len(words) * (step // config.bus_bytes),
        write_beats=host_vectors(ops, "w", n) * beats,
        least_beats=(tile_count * n + memory.tiles[0] * memory.batch + 2 * memory.bias_rows) * beats,
        predicted_cycles=trial.cycles, ops=tuple(ops))

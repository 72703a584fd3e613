"""The cost of each layer or stage of a network, from the timing model or from measurements in RTL simulation."""

import copy
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial

from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.hw.spec.registers import STALLS

from ..compiler.program import host_vectors
from ..compiler.timing.units import MATMUL, UNITS
from ..compiler.timing.waits import SumCost, sum_costs
from ..functions.functions import NONE

__all__ = ["LayerCost", "expected_layers", "measured_layers", "first_stages"]


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer or stage for one batch.

    The cycles of a layer are the cycles in which the array accepts its rows, plus its wait cycles. The cycles of all layers add
    up to the cycles of the whole program.
    """

    name: str
    kind: str
    shape: tuple  # (int, int, int). Height, width and channels of the result.
    tiling: str  # description of the tiling, for tables
    macs: int  # useful multiplications for the batch
    compute_cycles: int  # cycles of the array's passes
    #: cycles, busy: Cycles of the layer, and cycles in which the array accepted a row.
    cycles: int
    busy: int
    utilisation: float  # useful multiplications / (cycles x cells of the array)
    #: read_beats, write_beats: Bus beats that the layer reads and writes.
    read_beats: int
    write_beats: int
    stalls: dict | None = None  # Cycles in which the array accepted no row, by reason. None unless the layer was measured.

    @property
    def bound(self):
        """Returns the bottleneck. If the reason with most stall cycles has more of them than there are busy cycles, it is the
        bottleneck. Otherwise the bottleneck is "bus" or "array"."""
        if self.stalls:
            reason, cycles = max(self.stalls.items(), key=lambda entry: entry[1])
            if cycles > self.busy:
                return reason
        beats = self.read_beats + self.write_beats
        return "bus" if beats > self.compute_cycles else "array"


def _kind(stage, channels):
    parts = []
    for term in stage.terms:
        if term.copies:
            parts.append("copy")
            continue
        size = "x".join(map(str, term.kernel))
        identity = term.kernel == (1, 1) and term.groups == channels
        name = (
            "scale" if identity else "depthwise" if term.groups == channels > 1 else "conv" if stage.size != (1, 1) else "dense"
        )
        parts.append(name if name in ("dense", "scale") else f"{name} {size}")
    words = [" + ".join(dict.fromkeys(parts))]
    if stage.pool:
        words.append("max " + "x".join(map(str, stage.pool.window)))
    if stage.function != NONE:
        words.append(stage.function.name)
    if stage.softmax:
        words.append("softmax" if stage.softmax is True else "norm by rows")
    if stage.times:
        words.append("product")
    return ", ".join(words)


def first_stages(program, count):
    """Returns a program that ends after the first `count` layers. It has the same images, without the instructions of the other
    layers."""
    step = program.config.instruction_bytes
    words, ops, left = [], [], [[0] for _ in range(UNITS)]  # left: per unit, how many of its first instructions are kept
    for number, op in enumerate(program.ops):
        word = program.model[number * step : (number + 1) * step]
        kept = _kept_weights(op, word, count) if op.opcode is Opcode.LOAD_WEIGHTS else [(op, word)] * (op.stage < count)
        left[op.unit].append(left[op.unit][-1] + len(kept))
        words += [word for _, word in kept]
        ops += [op for op, _ in kept]
    for index, op in enumerate(ops):
        ops[index] = op = copy.copy(op)
        op.waits = [(unit, left[unit][need]) for unit, need in op.waits]
    words.append(encode(Opcode.HALT).to_bytes(step, "little"))
    size = program.instructions * step
    model = b"".join(words).ljust(size, b"\0") + program.model[size:]
    return replace(program, model=model, instructions=len(words), emit=partial(tuple, ops))


def _kept_weights(op, word, count):
    """Returns a LOAD_WEIGHTS without the tiles of layers after the first `count`, as `[(op, word)]`. Returns an empty list if no
    tile is left. In the image, the tiles of the first layers precede the others."""
    tiles = sum(tiles for stage, tiles in op.parts if stage < count)
    if not tiles:
        return []
    part = copy.copy(op)
    part.rows = tiles
    _, fields = decode(int.from_bytes(word, "little"))
    return [(part, encode(Opcode.LOAD_WEIGHTS, **fields | {"rows": tiles}).to_bytes(len(word), "little"))]


def _beats(program):
    """Returns the bus beats `(read, written)` of each layer."""
    config, own, weights, instructions = program.config, defaultdict(list), Counter(), Counter()
    for op in program.ops:
        instructions[op.stage] += 1
        if op.opcode is Opcode.LOAD_WEIGHTS:  # it may load tiles of several layers
            for stage, count in op.parts:
                weights[stage] += host_vectors([op], "r", config.n) * count // op.rows
        else:
            own[op.stage].append(op)
    beats = []
    for number in range(len(program.plan)):
        read = (host_vectors(own[number], "r", config.n) + weights[number]) * config.beats_per_vector
        read += instructions[number] * config.instruction_bytes // config.bus_bytes
        beats.append((read, host_vectors(own[number], "w", config.n) * config.beats_per_vector))
    return beats


def _layers(program, busy, cycles, stalls=None):
    """Returns the :class:`LayerCost` of each layer. The lists have the busy cycles, the cycles and the stalls of each layer."""
    graph, config, compute, layers = program.memory.network, program.config, Counter(), []
    for op in program.ops:
        if op.unit == MATMUL:
            compute[op.stage] += op.array_cycles(config.tile_cycles)
    for number, (stage, plan, macs, beats) in enumerate(zip(graph.stages, program.plan, graph.macs, _beats(program))):
        channels, useful = graph.channels(stage), program.batch * macs
        what = stage.name, _kind(stage, channels), (*stage.result_size, channels), plan, useful, compute[number]
        utilisation = useful / max(1, cycles[number]) / config.n**2
        costs = cycles[number], busy[number], utilisation, *beats, stalls and stalls[number]
        layers.append(LayerCost(*what, *costs))
    return layers


def expected_layers(program):
    """Returns the layers with cycles from one simulation by the timing model. Cycles in which the array waits count for the layer
    whose pass follows."""
    by_layer = {cost.name: cost for cost in sum_costs(program)}
    nothing = SumCost("", 0, 0, {})  # of a layer that only gives a tensor another shape
    costs = [by_layer.get(number, nothing) for number in range(len(program.plan))]
    return _layers(program, [cost.busy for cost in costs], [cost.cycles for cost in costs])


def measured_layers(program, run):
    """Returns the layers with cycles measured in RTL simulation.

    `run(program, number, layers)` must execute one batch of the program, which has the first `number` of `layers` layers. It
    returns the counters as :meth:`sim.host.driver.Driver.counters` does.
    """
    layers = len(program.plan)
    counters = [run(first_stages(program, number), number, layers) for number in range(1, layers + 1)]
    busy = [one["busy"] for one in counters]
    taken = [after - before for before, after in zip([0, *busy], busy)]
    stalls = _own_stalls([{name: one[f"stall_{name}"] for name in STALLS} for one in counters])
    return _layers(program, taken, [cycles + sum(own.values()) for cycles, own in zip(taken, stalls)], stalls)


def _own_stalls(stalls):
    """Returns the stall cycles of each layer by reason, from the stall cycles of executions of the first 1, 2, 3 ... layers."""
    own = [{name: cycles - before.get(name, 0) for name, cycles in one.items()} for before, one in zip([{}, *stalls], stalls)]
    for number in range(len(own) - 1, 0, -1):  # a layer may hide stalls of the layer before it
        for name, cycles in own[number].items():
            if cycles < 0:
                own[number][name], own[number - 1][name] = 0, own[number - 1][name] + cycles
    return own

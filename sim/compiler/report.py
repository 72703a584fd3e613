"""The cost of each layer or stage of a network, from the timing model or from measurements in RTL simulation."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.hw.spec.registers import STALLS

from ..functions.functions import NONE
from .image import array_cycles
from .program import host_vectors
from .timing.model import UNITS, simulate

__all__ = ["LayerCost", "described_layers", "expected_layers", "planned_layers", "measured_layers", "first_stages"]


_LAYERED_PASSES = 60_000  # limit of a program's passes for one simulation per layer


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer or stage for one batch.

    Layers overlap: while one layer drains, the operands of the next layer are loaded. The cycles of a layer are the cycles in
    which the array accepts its rows, plus the wait cycles that it adds. If a layer hides wait cycles of earlier layers, these are
    subtracted from the earlier layers. The cycles of all layers therefore add up to the cycles of the whole program.

    Parameters
    ----------
    name, kind : str
    shape : (int, int, int)
        Height, width and channels of the result.
    tiling : str
        Description of the tiling, for tables.
    macs : int
        Useful multiplications for the batch.
    compute_cycles : int
        Cycles of the array's passes.
    cycles, busy : int or None
        Cycles of the layer, and cycles in which the array accepted a row. None if they are not known.
    utilisation : float or None
        Useful multiplications / (cycles x cells of the array).
    read_beats, write_beats : int
        Bus beats that the layer reads and writes.
    stalls : dict or None
        Cycles in which the array accepted no row, by reason. None unless the layer was measured.
    """

    name: str
    kind: str
    shape: tuple
    tiling: str
    macs: int
    compute_cycles: int
    cycles: int | None
    busy: int | None
    utilisation: float | None
    read_beats: int
    write_beats: int
    stalls: dict | None = None

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


def _kind(stage):
    """Returns a short description of a stage, such as "conv 3x3, max 2x2, relu"."""
    parts = []
    for term in stage.terms:
        size = "x".join(map(str, term.kernel))
        identity = term.kernel == (1, 1) and term.groups == stage.channels
        name = (
            "scale"
            if identity
            else "depthwise"
            if term.groups == stage.channels > 1
            else "conv"
            if stage.size != (1, 1)
            else "dense"
        )
        parts.append(name if name in ("dense", "scale") else f"{name} {size}")
    words = [" + ".join(dict.fromkeys(parts))]
    if stage.pool:
        words.append("max " + "x".join(map(str, stage.pool.window)))
    if stage.function != NONE:
        words.append(stage.function.name)
    if stage.softmax:
        words.append("softmax")
    if stage.times:
        words.append("product")
    return ", ".join(words)


def _tiling(plan, stage, batched, number):
    height, width = stage.result_size
    parts = [
        f"{batched.chunks} x {batched.rows} samples"
        if batched.is_along_x(number)
        else f"{plan.samples} x {plan.rows}x{plan.columns} of {height}x{width}"
    ]
    if len(plan.groups) > 1 or plan.groups[0] > 1:
        groups = [f"{len(list(same))} x {size}" for size, same in groupby(plan.groups)]
        parts.append(f"column tiles {' + '.join(groups)}")
    if len(plan.blocks) > 1:
        parts.append(f"{len(plan.blocks)} blocks")
    return ", ".join(parts)


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


def _beats(program, number):
    config = program.config
    mine = [op for op in program.ops if op.stage == number]
    tiles = sum(count for op in program.ops if op.opcode is Opcode.LOAD_WEIGHTS for stage, count in op.parts if stage == number)
    read = (host_vectors(mine, "r", config.n) + tiles * config.n) * config.beats_per_vector
    return (
        read + len(mine) * config.instruction_bytes // config.bus_bytes,
        host_vectors(mine, "w", config.n) * config.beats_per_vector,
    )


def _described(program):
    """Returns `(name, kind, shape, tiling, useful multiplications per sample, array cycles)` of each layer."""
    batched = program.memory.batched
    cycles = array_cycles(batched, program.ops, program.config.n)
    return [
        (
            stage.name,
            _kind(stage),
            (*stage.result_size, stage.channels),
            _tiling(plan, batched.stages[number], batched, number),
            batched.graph.macs(stage),
            cycles[number],
        )
        for number, (stage, plan) in enumerate(zip(batched.graph.stages, program.plan))
    ]


def _layers(program, busy, waiting, reasons=None):
    """Returns the :class:`LayerCost` of each layer. The lists come from executions of the first 1, 2, 3 ... layers: `busy` has
    the cycles in which the array is busy, `waiting` the wait cycles by reason. If `reasons` is given, the layers have
    `stalls`."""
    config, own = program.config, []
    for number in range(len(busy)):
        before = waiting[number - 1] if number else {}
        own.append({name: cycles - before.get(name, 0) for name, cycles in waiting[number].items()})
    for number in range(len(own) - 1, 0, -1):  # a layer may hide wait cycles of the layer before it
        for name, cycles in own[number].items():
            if cycles < 0:
                own[number][name], own[number - 1][name] = 0, own[number - 1][name] + cycles
    layers = []
    for number, (name, kind, shape, tiling, macs, compute) in enumerate(_described(program)):
        taken = busy[number] - (busy[number - 1] if number else 0)
        cycles, macs = taken + sum(own[number].values()), program.batch * macs
        read, written = _beats(program, number)
        layers.append(
            LayerCost(
                name,
                kind,
                shape,
                tiling,
                macs,
                compute,
                cycles,
                taken,
                macs / max(1, cycles) / config.n**2,
                read,
                written,
                own[number] if reasons else None,
            )
        )
    return layers


def described_layers(program):
    """Returns the layers with their sizes. Cycles and utilisation are None."""
    return [
        LayerCost(name, kind, shape, tiling, program.batch * macs, compute, None, None, None, *_beats(program, number))
        for number, (name, kind, shape, tiling, macs, compute) in enumerate(_described(program))
    ]


def expected_layers(program):
    """Returns the layers with cycles from the timing model, which simulates the program once per layer."""
    runs = [simulate(first_stages(program, count + 1).ops, program.config) for count in range(len(_described(program)))]
    return _layers(program, [run.busy for run in runs], [{"": run.cycles - run.busy} for run in runs])


def planned_layers(program):
    """Returns the layers with cycles from the timing model. If the program has more than `_LAYERED_PASSES` passes, the cycles are
    None, as the simulations would take too long."""
    return described_layers(program) if program.cost.passes > _LAYERED_PASSES else expected_layers(program)


def measured_layers(program, run):
    """Returns the layers with cycles measured in RTL simulation.

    `run(program, number, layers)` must execute one batch of the program, which has the first `number` of `layers` layers. It
    returns the counters as :meth:`sim.host.driver.Driver.counters` does.
    """
    layers = len(_described(program))
    counters = [run(first_stages(program, number), number, layers) for number in range(1, layers + 1)]
    return _layers(
        program,
        [one["busy"] for one in counters],
        [{name: one[f"stall_{name}"] for name in STALLS} for one in counters],
        reasons=True,
    )

"""The cycles in which the array waits, by reason: of a program, of each sum of a training step, or of each layer of a network."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from .model import simulate
from .units import ACTIVATE, LOAD, MATMUL, RING, STORE, UNITS, WEIGHTS

__all__ = ["REASONS", "SumCost", "array_waits", "sum_costs"]

_OF_UNIT = {LOAD: "load", WEIGHTS: "weights", STORE: "store", MATMUL: "fetch", ACTIVATE: "activate", RING: "ring"}

#: Reasons for which the array waits, and their meaning. The stall counters have the same names, and attribute each cycle in
#: the RTL; here a cycle counts for the first cause of a chain.
REASONS = {
    "fetch": "the next instruction is not dispatched yet",
    "load": "operands or biases are loaded",
    "activate": "results are computed from sums",
    "store": "results are stored in host memory",
    "ring": "cores exchange vectors",
    "weights": "a tile of weights is on its way, or sums are still in the array",
    "shift": "a tile of weights shifts in, n / weight_rows cycles after the last",
    "drain": "after the last pass",
}


def array_waits(ops, timeline, tile_cycles):
    """Returns {stage: Counter of reason: cycles} for instructions and their :class:`.Timeline`. A tile shifts in
    for `tile_cycles` cycles.

    Before a MATMUL, the array waits for the latest of the instructions on which it depends. That instruction waited for another
    one before it began, and so on, back to the end of the pass before. Each cycle counts for the unit of the instruction that was
    executed or about to begin. Cycles after the last pass count for the stage of that pass.
    """
    path, found, last, taken, begun = _Path(ops, timeline), {}, 0, 0, iter(timeline.passes)
    for index, op in enumerate(ops):
        if op.unit != MATMUL:
            continue
        waits = found.setdefault(op.stage, Counter())
        for number in range(op.passes):
            first = next(begun)
            shifted = last if op.keep else max(last, min(taken + tile_cycles, first))
            start = max(shifted, min(timeline.starts[index], first)) if number == 0 else shifted
            path.add(waits, index, shifted, start)
            waits.update(shift=shifted - last, weights=first - start)
            last, taken = first + op.rows, taken if op.keep else first
    waits["drain"] += timeline.cycles - last
    return found


class _Path:
    """The chains of instructions that wait for each other."""

    def __init__(self, ops, timeline):
        self.ops, self.timeline, self.indices = ops, timeline, [[] for _ in range(UNITS)]
        for index, op in enumerate(ops):
            self.indices[op.unit].append(index)

    def add(self, waits, index, first, end):
        while end > first:
            done, before = self._latest(index, end)
            waits[_OF_UNIT[self.ops[index].unit]] += end - max(first, done)
            index, end = before, done

    def _latest(self, index, end):
        """Returns (cycle, index) of the instruction that completed last, at most in cycle `end`, of those that instruction
        `index` waits for. The instruction before it on its unit is one of them: its completion counts, or the start of `index` if
        that is sooner. Returns (0, index) if there is none."""
        op, timeline = self.ops[index], self.timeline
        latest = [(timeline.ends[unit][need - 1], self.indices[unit][need - 1]) for unit, need in op.waits if need]
        place = bisect_right(self.indices[op.unit], index) - 2
        if place >= 0:
            latest.append((min(timeline.ends[op.unit][place], timeline.starts[index]), self.indices[op.unit][place]))
        return max((one for one in latest if one[0] <= end), default=(0, index))


@dataclass(frozen=True)
class SumCost:
    """The cost of a sum of a training step, or of a layer of a network. The costs of a program add up to its cycles."""

    name: str | int  # name of the tensor that the sum makes, or number of the layer
    instructions: int
    busy: int  # cycles in which the array accepts rows of the sum's passes
    #: Dict of str to int. Cycles in which the array waits before these passes, by reason: keys of
    #: :data:`REASONS`.
    waits: dict

    @property
    def cycles(self):
        return self.busy + sum(self.waits.values())


def sum_costs(program):
    """Returns the :class:`SumCost` of each sum of a program, in the order of their first instructions."""
    ops, config = program.ops, program.config
    waits = array_waits(ops, simulate(ops, config, program.host, cores=program.cores), config.tile_cycles)
    instructions, busy = Counter(op.stage for op in ops), Counter()
    for op in ops:
        if op.unit == MATMUL:
            busy[op.stage] += op.passes * op.rows
    return [SumCost(name, count, busy[name], dict(+waits.get(name, Counter()))) for name, count in instructions.items()]

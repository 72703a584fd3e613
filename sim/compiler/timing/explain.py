"""The cost of each sum of a training step, or of each layer of a network, from one simulation by the timing model."""

from collections import Counter
from dataclasses import dataclass

from .model import simulate
from .units import MATMUL
from .waits import array_waits

__all__ = ["SumCost", "sum_costs"]


@dataclass(frozen=True)
class SumCost:
    """The cost of a sum of a training step, or of a layer of a network. The costs of a program add up to its cycles."""

    name: str | int  # name of the tensor that the sum makes, or number of the layer
    instructions: int
    busy: int  # cycles in which the array accepts rows of the sum's passes
    #: Dict of str to int. Cycles in which the array waits before these passes, by reason: keys of
    #: :data:`sim.compiler.timing.waits.REASONS`.
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

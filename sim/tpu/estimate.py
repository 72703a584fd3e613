"""Cost estimates of networks on a core, from the timing model. They need no simulation."""

from dataclasses import dataclass, field
from functools import cached_property

from amaranth_tpu.hw.spec.isa import Region

from .html import LayerTable, html_table
from .layer_costs import expected_layers

__all__ = ["Estimate", "estimate_of"]


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of executing one batch.

    Parameters
    ----------
    n, batch : int
        Rows and columns of the array, and samples per batch.
    cycles : int
        Cycles from start to interrupt, including all transfers.
    bound : int
        Lower bound on the cycles of any schedule: the array's cycles or the bus's cycles, whichever are more.
    macs : int
        Multiply-accumulates that contribute to the results.
    utilisation : float
        `macs` / (`cycles` x cells of the array), 0 to 1.
    instructions : int
    read_words, write_words : int
        Number of words read and written on the bus.
    word_bytes : int
        Bytes per bus word.
    memory : dict of str to int
        Size of each region of host memory in bytes: MODEL (program and weights), INPUT, OUTPUT, SCRATCH (tensors between layers).
    """

    n: int
    batch: int
    cycles: int
    bound: int
    macs: int
    utilisation: float
    instructions: int
    read_words: int
    write_words: int
    word_bytes: int
    memory: dict
    programs: tuple = field(repr=False)

    @cached_property
    def layers(self):
        """Returns the cost of each layer: a list of :class:`sim.tpu.layer_costs.LayerCost`. The cycles of the layers add up to
        `cycles`."""
        return LayerTable(layer for program in self.programs for layer in expected_layers(program))

    def _repr_html_(self):
        memory = ", ".join(f"{name} {size:,}" for name, size in self.memory.items())
        facts = [
            ("cycles of a batch", self.cycles),
            ("lower bound", self.bound),
            ("utilisation", self.utilisation),
            ("bytes of memory", memory),
        ]
        return html_table(f"batch {self.batch} on {self.n} x {self.n} cells", ("", ""), facts) + self.layers._repr_html_()


def estimate_of(programs, config, batch):
    """Returns the :class:`Estimate` of programs that run one after the other, a sequence of
    :class:`sim.compiler.program.Program`."""

    def size(name):
        return sum(program.sizes[Region[name]] for program in programs)

    def total(figure):
        return sum(figure(program) for program in programs)

    cycles, macs = total(lambda one: one.predicted_cycles), total(lambda one: one.useful_macs)
    return Estimate(
        n=config.n,
        batch=batch,
        cycles=cycles,
        bound=total(lambda one: one.bound),
        macs=macs,
        utilisation=macs / max(1, cycles) / config.n**2,
        instructions=total(lambda one: one.instructions),
        read_words=total(lambda one: one.cost.read_beats),
        write_words=total(lambda one: one.cost.write_beats),
        word_bytes=config.bus_bytes,
        memory={name: size(name) for name in ("MODEL", "INPUT", "OUTPUT", "SCRATCH")},
        programs=tuple(programs),
    )

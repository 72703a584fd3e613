"""Cost estimates of a network on a core, from the timing model, before anything is built."""

from dataclasses import dataclass, field
from functools import cached_property

from ..compiler.report import planned_layers

__all__ = ["Estimate", "estimate_of"]


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run of one batch.

    Parameters
    ----------
    n, batch : int
        Rows and columns of the array; samples of the batch.
    cycles : int
        Cycles from start to interrupt, including all transfers, at the default latency of the host memory.
    bound : int
        Lower bound of the cycles of any schedule: the maximum of the array's and the bus's own cycles.
    macs : int
        Useful multiply-accumulates.
    utilisation : float
        `macs` / (`cycles` x cells of the array).
    instructions : int
    read_words, write_words : int
        Words transferred on the bus.
    word_bytes : int
        Bytes per bus word.
    memory : dict of str to int
        Bytes of host memory in each region: MODEL (program and weights), INPUT, OUTPUT, SCRATCH (between layers).
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
    program: object = field(repr=False)

    @cached_property
    def layers(self):
        """The cost of each layer: a list of :class:`sim.compiler.report.LayerCost`, with cycles that add up to the run's.

        Layers have no cycles in a program of more than 60,000 passes.
        """
        return planned_layers(self.program)


def estimate_of(program):
    """Returns the :class:`Estimate` of a :class:`sim.compiler.program.Program`."""
    config, cycles = program.config, program.predicted_cycles
    return Estimate(
        n=config.n,
        batch=program.batch,
        cycles=cycles,
        bound=program.bound,
        macs=program.useful_macs,
        utilisation=program.useful_macs / cycles / config.n**2,
        instructions=program.instructions,
        read_words=program.read_beats,
        write_words=program.write_beats,
        word_bytes=config.bus_bytes,
        memory={
            "MODEL": len(program.model),
            "INPUT": program.input_bytes,
            "OUTPUT": program.output_bytes,
            "SCRATCH": program.scratch_bytes,
        },
        program=program,
    )

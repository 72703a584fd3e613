"""What a network costs on a core, before anything of it is built."""

from dataclasses import dataclass, field
from functools import cached_property

from ..compiler.report import planned_layers

__all__ = ["Estimate", "estimate_of"]


@dataclass(frozen=True)
class Estimate:
    """Of a run of one batch.

    Parameters
    ----------
    n, batch : int
        Rows and columns of the array; samples.
    cycles : int
        From start to interrupt, with all loading and storing, the host memory's latency the default.
    bound : int
        Cycles that no schedule goes below: the larger of what the array and the bus need, each as if alone.
    macs : int
        Useful multiply-accumulates.
    utilisation : float
        These over cycles times cells.
    instructions : int
    read_words, write_words : int
        On the bus.
    word_bytes : int
        Of one of them.
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
        """What each layer costs: a list of :class:`sim.compiler.report.LayerCost`, whose cycles add up to those of the run.
        They have no cycles in a program of more than 60,000 passes."""
        return planned_layers(self.program)


def estimate_of(program):
    """The :class:`Estimate` of a :class:`sim.compiler.program.Program`."""
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

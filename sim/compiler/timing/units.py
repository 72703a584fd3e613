"""The units of the core, whose instructions are executed in order, and the times of instructions."""

from dataclasses import dataclass

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS

__all__ = ["ACTIVATE", "LOAD", "MATMUL", "RING", "STORE", "UNIT", "UNITS", "WEIGHTS", "Timeline", "turnaround"]

_UNITS = [Unit.LOAD, Unit.WEIGHTS, Unit.STORE, Unit.MATMUL, Unit.ACTIVATE, Unit.RING]
#: Number of units, and their indices. Each unit executes in order.
UNITS = len(_UNITS)
LOAD, WEIGHTS, STORE, MATMUL, ACTIVATE, RING = range(UNITS)
#: Opcode to the index of its unit. Opcodes without a unit have the index after the last.
UNIT = {opcode: (*_UNITS, Unit.CONTROL).index(record.unit) for opcode, record in INSTRUCTIONS.items()}


def turnaround(config):
    """Returns the number of cycles after which a pass may read accumulator rows that the previous pass writes."""
    return config.n * config.latency + config.read_latency + 1


@dataclass
class Timeline:
    """The result of a simulation."""

    cycles: int
    starts: list  # List of int. Cycle in which each instruction began.
    busy: int  # cycles in which the array accepted rows
    #: List of list of int. Of each unit, the cycles in which its instructions completed, as seen by later instructions.
    ends: list
    passes: list  # List of int. Cycle in which each pass of the array began.

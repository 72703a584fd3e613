"""The cycles of one instruction of results, of a store or of the ring, if it waits for nothing."""

from amaranth_tpu.hw.cycles import result_cycles

from .ring import ring_cycles
from .units import ACTIVATE, RING

__all__ = ["alone_cycles"]


def alone_cycles(op, config, cores):
    if op.unit == RING:
        return ring_cycles(config, op.fields, cores)[0]
    return result_cycles(config, op.opcode, op.fields)[0] if op.unit == ACTIVATE else op.rows * config.beats_per_vector

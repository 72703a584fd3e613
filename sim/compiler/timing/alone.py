"""The cycles of one instruction of results, of a store or of the ring, if it waits for nothing."""

from amaranth_tpu.hw.cycles import result_cycles, ring_cycles
from amaranth_tpu.hw.spec.isa import RingMode

from .units import ACTIVATE, RING

__all__ = ["alone_cycles", "exchange"]

_LINK = 1  # cycles from one core to the next


def alone_cycles(op, config, cores):
    if op.unit == RING:
        return exchange(op, config, cores)[0]
    return result_cycles(config, op.opcode, op.fields)[0] if op.unit == ACTIVATE else op.rows * config.beats_per_vector


def exchange(op, config, cores):
    """Returns the cycles of a RING, and the vectors that it reads and writes through the vector port."""
    mode, segment, rounds = (op.fields[name] for name in ("mode", "segment", "rounds"))
    vectors = rounds * segment * (2 * cores if mode is RingMode.ALL_REDUCE else cores + 1)
    return ring_cycles(config, mode, cores, segment, rounds, _LINK), vectors

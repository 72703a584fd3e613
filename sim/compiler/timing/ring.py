"""Timing of the RING instruction, if all cores reach it at the same time."""

from amaranth_tpu.hw.spec.isa import RingMode

__all__ = ["ring_cycles"]

_LINK = 1  # cycles from one core to the next


def ring_cycles(config, fields, cores):
    """Returns `(cycles, vectors)` of a RING: its duration without contention, and the number of vectors that it reads and writes
    through the vector port.

    In each round, a core sends its segment, then forwards the segment of each other core. The duration of a round is limited by
    the vector rate or, for short segments, by the latency around the ring.
    """
    segment, rounds = fields["segment"], fields["rounds"]
    if cores == 1:
        return 2 * segment * rounds, 2 * segment * rounds
    hop = _LINK + config.latency + 1  # from a vector that leaves a core to its sum that leaves the next core
    once = segment + (cores - 1) * max(hop, segment)
    if fields["mode"] is RingMode.ALL_REDUCE:
        return rounds * 2 * once, rounds * 2 * cores * segment
    vectors = (cores + 1) * segment  # one port reads and writes
    return rounds * max(once, vectors), rounds * vectors

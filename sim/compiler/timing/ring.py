"""How long RING takes on cores that reach it at the same time."""

from amaranth_tpu.hw.spec.isa import RingMode

__all__ = ["ring_cycles"]

_LINK = 1  # cycles from one core to the next


def ring_cycles(config, fields, cores):
    """`(cycles, vectors)` of a RING: how long it takes if nothing is in its way, and how many vectors it reads and writes.

    In a round, a core sends a segment, and then for each other core hands on the one that comes: as fast as vectors come and go,
    or as long as the way round takes, which is what bounds short segments.
    """
    segment, rounds = fields["segment"], fields["rounds"]
    if cores == 1:
        return 2 * segment * rounds, 2 * segment * rounds
    hop = _LINK + config.latency + 1  # from a vector that leaves a core to its sum that leaves the next one
    once = segment + (cores - 1) * max(hop, segment)
    if fields["mode"] is RingMode.ALL_REDUCE:
        return rounds * 2 * once, rounds * 2 * cores * segment
    vectors = (cores + 1) * segment  # one port reads and writes
    return rounds * max(once, vectors), rounds * vectors

"""The definition of a ring's results: the order of sums, the owner of each segment, and the number of words sent.

Core i of P holds P segments. A segment is an array of any shape: binary32 bits (uint32) if it is summed, any type if it is only
forwarded. Shapes below list the cores, then the segments, then the shape of a segment.
"""

import functools

import numpy as np

from amaranth_tpu.hw.spec.isa import RingMode

from .arithmetic import add

__all__ = ["ring_sum", "reduce_scatter", "all_gather", "all_reduce", "held_by", "exchange", "words_sent"]


def held_by(rank, size):
    """Returns the segment that a core holds after REDUCE_SCATTER, and sends in ALL_GATHER."""
    return (rank + 1) % size


def ring_sum(parts, segment, add=add):
    """Returns ((g_s + g_s+1) + ...) + g_s-1 for segment s, indices mod P. A single core's segment is unchanged.

    Parameters
    ----------
    parts : uint32 (P, ...)
        This segment of every core, or any type that `add` takes.
    segment : int
    add : callable
        Adds two parts. Default: the cell's addition.
    """
    size = len(parts)
    return functools.reduce(add, (parts[(segment + step) % size] for step in range(size)))


def reduce_scatter(own):
    """Computes uint32 (P, P, ...) -> (P, ...): core i gets the sum of segment (i + 1) mod P."""
    size = len(own)
    return np.stack([ring_sum(own[:, segment], segment) for segment in (held_by(rank, size) for rank in range(size))])


def all_gather(held):
    """Computes (P, ...) -> (P, ...), bits unchanged: every core gets all segments; core i provides segment (i + 1) mod P."""
    size = len(held)
    return np.stack([held[(segment - 1) % size] for segment in range(size)])


def all_reduce(own):
    """Computes uint32 (P, P, ...) -> (P, ...): every core gets the sums of all segments."""
    return all_gather(reduce_scatter(own))


def exchange(mode, own):
    """Returns the vectors that RING writes in every core, from the vectors that it reads.

    Parameters
    ----------
    mode : RingMode
    own : list of arrays of vectors, uint16
        One per core. ALL_REDUCE, REDUCE_SCATTER: (P, vectors, n), binary32 with the low half first. ALL_GATHER: (vectors, n).

    Returns
    -------
    list of arrays of vectors, uint16
        One per core. ALL_REDUCE, ALL_GATHER: (P, vectors, n). REDUCE_SCATTER: (vectors, n).
    """
    own = np.stack(own)
    if mode is RingMode.ALL_GATHER:
        return [all_gather(own)] * len(own)
    words = np.ascontiguousarray(own, "<u2").view("<u4")
    if mode is RingMode.REDUCE_SCATTER:
        return list(np.ascontiguousarray(reduce_scatter(words), "<u4").view("<u2"))
    return [np.ascontiguousarray(all_reduce(words), "<u4").view("<u2")] * len(own)


def words_sent(mode, size, vectors, n):
    """Returns the words of 32 bits that each core sends, for segments of `vectors` vectors over all rounds. For N words in P
    segments this is 2N(P-1)/P for ALL_REDUCE, and N(P-1)/P for the other modes."""
    return (2 if mode is RingMode.ALL_REDUCE else 1) * (size - 1) * vectors * n // 2

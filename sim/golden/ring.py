"""The definition of ring reductions and gathers: the order of sums, the owner of each segment, and the number of words sent.

Each of the P cores holds P segments. A segment is an array of any shape: binary32 bit patterns (uint32) if it is summed, any type
if it is only forwarded. The first axis of the shapes below is the core, the second the segment; the axes of the segment follow.
"""

import functools

import numpy as np

from amaranth_tpu.hw.spec.isa import RingMode

from .arithmetic import add

__all__ = ["ring_sum", "reduce_scatter", "all_gather", "all_reduce", "held_by", "exchange", "words_sent"]


def held_by(rank, size):
    """Returns the index of the segment that core `rank` owns after REDUCE_SCATTER, and sends in ALL_GATHER. `size` is the number
    of cores."""
    return (rank + 1) % size


def ring_sum(parts, segment, add=add):
    """Returns the sum of one segment over all cores, in the order of the ring: ((g_s + g_s+1) + ...) + g_s-1 for segment s, with
    core indices mod P. With one core the segment is unchanged.

    Parameters
    ----------
    parts : uint32 (P, ...)
        The segment of every core, in any type that `add` takes.
    segment : int
    add : callable
        Adds two arrays of the form of a segment. Default: the binary32 addition of a cell.
    """
    size = len(parts)
    return functools.reduce(add, (parts[(segment + step) % size] for step in range(size)))


def reduce_scatter(own):
    """Reduces segments: core i gets the sum of segment (i + 1) mod P. uint32 (P, P, ...) -> (P, ...)."""
    size = len(own)
    return np.stack([ring_sum(own[:, segment], segment) for segment in (held_by(rank, size) for rank in range(size))])


def all_gather(held):
    """Gathers segments, bits unchanged: every core gets all segments; core i provides segment (i + 1) mod P. (P, ...) -> (P,
    ...)."""
    size = len(held)
    return np.stack([held[(segment - 1) % size] for segment in range(size)])


def all_reduce(own):
    """Reduces and gathers segments: every core gets the sums of all segments. uint32 (P, P, ...) -> (P, ...)."""
    return all_gather(reduce_scatter(own))


def exchange(mode, own):
    """Computes the vectors that the instruction RING writes in every core, from the vectors that it reads in every core.

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
    """Returns the number of 32-bit words that each core sends. `vectors` is the size of a segment in vectors, over all rounds.

    For N words in P segments this is 2N(P-1)/P for ALL_REDUCE, and N(P-1)/P for the other modes.
    """
    return (2 if mode is RingMode.ALL_REDUCE else 1) * (size - 1) * vectors * n // 2

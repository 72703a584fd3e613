"""The definition of what a ring of cores computes: the order of sums, which segment is where, and how many words are sent.

Core i of P holds P segments. A segment is an array of any shape: of binary32 bits (uint32) where it is summed, of anything where
it is only handed on. The shapes below begin with the cores, then the segments; what follows is that of a segment.
"""

import functools

import numpy as np

from amaranth_tpu.hw.spec.isa import RingMode

from .arithmetic import add

__all__ = ["ring_sum", "reduce_scatter", "all_gather", "all_reduce", "held_by", "exchange", "words_sent"]


def held_by(rank, size):
    """The segment that a core holds after REDUCE_SCATTER, and hands out in ALL_GATHER."""
    return (rank + 1) % size


def ring_sum(parts, segment, add=add):
    """((g_s + g_s+1) + ...) + g_s-1 of segment s, indices mod P; that of one core is what it has, unchanged.

    Parameters
    ----------
    parts : uint32 (P, ...)
        This segment of every core; or whatever `add` takes.
    segment : int
    add : callable
        The sum of two parts, as a cell adds.
    """
    size = len(parts)
    return functools.reduce(add, (parts[(segment + step) % size] for step in range(size)))


def reduce_scatter(own):
    """uint32 (P, P, ...) -> (P, ...): core i gets the sum of segment (i + 1) mod P."""
    size = len(own)
    return np.stack([ring_sum(own[:, segment], segment) for segment in (held_by(rank, size) for rank in range(size))])


def all_gather(held):
    """(P, ...) -> (P, ...), bits unchanged: what core i has is segment (i + 1) mod P of what every core gets."""
    size = len(held)
    return np.stack([held[(segment - 1) % size] for segment in range(size)])


def all_reduce(own):
    """uint32 (P, P, ...) -> (P, ...): the sums of all segments, which every core gets."""
    return all_gather(reduce_scatter(own))


def exchange(mode, own):
    """What RING writes in every core, of what it reads there.

    Parameters
    ----------
    mode : RingMode
    own : list of arrays of vectors, uint16
        Of each core. ALL_REDUCE, REDUCE_SCATTER: (P, vectors, n), binary32 with the low half first. ALL_GATHER: (vectors, n).

    Returns
    -------
    list of arrays of vectors, uint16
        Of each core. ALL_REDUCE, ALL_GATHER: (P, vectors, n). REDUCE_SCATTER: (vectors, n).
    """
    own = np.stack(own)
    if mode is RingMode.ALL_GATHER:
        return [all_gather(own)] * len(own)
    words = np.ascontiguousarray(own, "<u2").view("<u4")
    if mode is RingMode.REDUCE_SCATTER:
        return list(np.ascontiguousarray(reduce_scatter(words), "<u4").view("<u2"))
    return [np.ascontiguousarray(all_reduce(words), "<u4").view("<u2")] * len(own)


def words_sent(mode, size, vectors, n):
    """Words of 32 bits that each core sends, for segments of so many vectors in all rounds together. Of N words in P segments
    that is 2N(P-1)/P for ALL_REDUCE, and N(P-1)/P for the others."""
    return (2 if mode is RingMode.ALL_REDUCE else 1) * (size - 1) * vectors * n // 2

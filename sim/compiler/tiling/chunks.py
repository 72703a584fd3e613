"""Chunks of the batch, in steps of dense networks. The last chunk is usually small, because nothing overlaps with its Softmax:
other jobs of the last chunk precede it, and no gradient of a parameter is complete before it."""

from dataclasses import replace

from ..lowering.sums import Expansion, MatrixSum
from ..tuning import CHUNKS, LAST_CHUNK

__all__ = ["chunked", "divisions"]


def divisions(sums, n):
    """Returns several divisions of the samples into chunks, each as a list of the first rows. Returns one chunk if samples have
    several positions, or if there are few samples."""
    if any(isinstance(one, Expansion) or isinstance(one, MatrixSum) and one.shape.geometry.period > 1 for one in sums):
        return [(0,)]
    rows, unit, found = sums[0].shape.geometry.rows, max(n, LAST_CHUNK), []
    for size, end in CHUNKS:
        last = end * unit
        found.append((*range(0, rows - last, size * unit), rows - last) if 0 < last < rows else (0,))
    return [*dict.fromkeys(found)]


def chunked(sums, starts):
    """Returns the sums in which each sum of samples is divided into parts that begin at the rows `starts`."""
    if len(starts) == 1:
        return sums
    parts = []
    for one in sums:
        if isinstance(one, MatrixSum) and one.has_samples:
            ends = [*starts[1:], one.shape.rows]
            parts += [replace(one, span=(first, end - first)) for first, end in zip(starts, ends)]
        else:
            parts.append(one)
    return parts

"""The definition of data-parallel gradients: a batch on several cores, a shard each, and the order in which a ring adds up.

Segment `s` of a gradient is the sum over the cores that begins at core `s` and goes round the ring::

    G = ((G_s + G_s+1) + G_s+2) + ... + G_s-1                 indices modulo the number of cores

Of weights to output `o` the segment is floor(o / ceil(outputs / cores)), of a bias it is 0. So the bits depend on the number of
cores, and not on the core that asks.
"""

import numpy as np

__all__ = ["MOST_CORES", "segment_outputs", "shards_of", "summed"]

#: Cores of a ring, at most.
MOST_CORES = 8


def segment_outputs(outputs, cores):
    """Outputs of a segment of weights; the last segments may have fewer, or none."""
    return -(-outputs // cores)


def shards_of(batch, cores):
    """A slice of the batch's samples for each core. Raises ValueError, one line, where they are not equally many."""
    if not 1 <= cores <= MOST_CORES:
        raise ValueError(f"cores must be 1 to {MOST_CORES}, not {cores}")
    if batch % cores:
        raise ValueError(f"a batch of {batch} samples can't be cut into {cores} equal shards; give a multiple of {cores}")
    each = batch // cores
    return [slice(core * each, (core + 1) * each) for core in range(cores)]


def summed(shards, is_bias, sums):
    """The gradient of a parameter, float32, from those of the cores' shards.

    Parameters
    ----------
    shards : list of float32 array
        One a core; outputs are their last axis.
    is_bias : bool
    sums : sim.golden.gradients.Sums
    """
    cores, outputs = len(shards), shards[0].shape[-1]
    segments = np.zeros(outputs, int) if is_bias else np.arange(outputs) // segment_outputs(outputs, cores)
    total = _taken(shards, segments)
    for step in range(1, cores):
        total = sums.added(total, _taken(shards, (segments + step) % cores))
    return total


def _taken(shards, owners):
    """Of each output, the values of its owner."""
    values = np.empty_like(shards[0])
    for core in np.unique(owners):
        values[..., owners == core] = shards[core][..., owners == core]
    return values

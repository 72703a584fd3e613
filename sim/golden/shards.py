"""The definition of data-parallel gradients: a batch on several cores, a shard each, whose gradients a ring adds up.

Segment `s` of a gradient is what :func:`sim.golden.ring.ring_sum` says of it. Of weights to output `o` the segment is
floor(o / ceil(outputs / cores)), of a bias it is 0. So the bits depend on the number of cores, and not on the core that asks.
"""

import numpy as np

from amaranth_tpu.hw.spec.registers import MOST_CORES

from .ring import ring_sum

__all__ = ["segment_outputs", "shards_of", "summed"]


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
    each = outputs if is_bias else segment_outputs(outputs, cores)
    segments = [slice(first, first + each) for first in range(0, outputs, each)]
    parts = [ring_sum([shard[..., part] for shard in shards], number, sums.added) for number, part in enumerate(segments)]
    return np.concatenate(parts, axis=-1)

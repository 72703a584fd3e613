"""The definition of data-parallel gradients: each core computes the gradients of a shard of the batch, and a ring all-reduces the
gradients.

:func:`sim.golden.ring.ring_sum` defines the sum of segment `s` of a gradient. The weights of output `o` are in segment floor(o /
ceil(outputs / cores)); a bias is in segment 0. The bits therefore depend on the number of cores, but all cores get the same bits.
"""

import numpy as np

from amaranth_tpu.hw.spec.registers import MOST_CORES

from .ring import ring_sum

__all__ = ["segment_outputs", "shards_of", "summed"]


def segment_outputs(outputs, cores):
    """Returns the number of outputs whose weights are in one segment. The last segments may have fewer outputs, or none."""
    return -(-outputs // cores)


def shards_of(batch, cores):
    """Returns the shards of a batch: for each core, a slice of the samples. Raises ValueError, one line, if the shards would not
    be equal."""
    if not 1 <= cores <= MOST_CORES:
        raise ValueError(f"cores must be 1 to {MOST_CORES}, not {cores}")
    if batch % cores:
        raise ValueError(f"a batch of {batch} samples can't be cut into {cores} equal shards; give a multiple of {cores}")
    each = batch // cores
    return [slice(core * each, (core + 1) * each) for core in range(cores)]


def summed(shards, is_bias, sums):
    """Computes the gradient of a parameter, float32, from the gradients that the cores computed for their shards.

    Parameters
    ----------
    shards : list of float32 array
        One per core. The last axis is the output.
    is_bias : bool
    sums : sim.golden.gradients.Sums
    """
    cores, outputs = len(shards), shards[0].shape[-1]
    each = outputs if is_bias else segment_outputs(outputs, cores)
    segments = [slice(first, first + each) for first in range(0, outputs, each)]
    parts = [ring_sum([shard[..., part] for shard in shards], number, sums.added) for number, part in enumerate(segments)]
    return np.concatenate(parts, axis=-1)

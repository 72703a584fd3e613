"""Shares of a batch on the cores of a ring."""

from amaranth_tpu.hw.spec.registers import MOST_CORES

__all__ = ["shards_of"]


def shards_of(batch, cores):
    """Returns the shards of a batch: for each core, a slice of the samples. Raises ValueError, one line, if the shards would not
    be equal."""
    if not 1 <= cores <= MOST_CORES:
        raise ValueError(f"cores must be 1 to {MOST_CORES}, not {cores}")
    if batch % cores:
        raise ValueError(f"a batch of {batch} samples can't be cut into {cores} equal shards; give a multiple of {cores}")
    each = batch // cores
    return [slice(core * each, (core + 1) * each) for core in range(cores)]

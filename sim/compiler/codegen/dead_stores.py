"""Removal of the STOREs of results that all of their readers find in the unified buffer."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, Region

from ..timing.units import STORE
from .instructions import accesses

__all__ = ["scratch_vectors", "without_dead_stores"]


def without_dead_stores(ops, lowered, config):
    """Returns the instructions without STOREs to vectors of region SCRATCH that no instruction loads. Tensors that are kept from
    step to step stay, and weights that the cores of a ring gather."""
    live = np.zeros(lowered.sizes[Region.SCRATCH], bool)
    for matrix in (*map(lowered.matrix, lowered.step.state), *(one.image for one in lowered.gathers)):
        live[matrix.vector : matrix.vector + matrix.size] = True
    spans = [_scratch(op, config) for op in ops]
    for span in (span for op, span in zip(ops, spans) if op.opcode is not Opcode.STORE):
        live[span] = True
    dead = [
        op.opcode is Opcode.STORE and op.fields["region"] is Region.SCRATCH and not live[span].any()
        for op, span in zip(ops, spans)
    ]
    left = np.cumsum([0, *(not gone for op, gone in zip(ops, dead) if op.unit == STORE)]).tolist()
    for op in ops:
        op.waits = tuple((unit, kept) for unit, need in op.waits if (kept := left[need] if unit == STORE else need))
    return [op for op, gone in zip(ops, dead) if not gone]


def scratch_vectors(ops, lowered, config):
    """Returns the number of vectors of region SCRATCH up to the last that an instruction accesses, or that is kept from step to
    step."""
    kept = map(lowered.matrix, lowered.step.state)
    return max([*(_scratch(op, config).stop for op in ops), *(matrix.vector + matrix.size for matrix in kept)], default=0)


def _scratch(op, config):
    if op.fields.get("region") is not Region.SCRATCH:
        return slice(0)
    places = accesses(op.opcode, op.fields, config.vector_bytes)
    return next((slice(first, first + count) for memory, first, count, _ in places if memory is Region.SCRATCH), slice(0))

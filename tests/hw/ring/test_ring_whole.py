# amaranth: UnusedElaboratable=no
"""Tests that rings do not deadlock, by induction over the units' properties for any size, and by bounded proofs of whole rings of
the RTL."""

import pytest

from amaranth_tpu.sim.proofs.ring_whole import ring_script, standstill_script
from amaranth_tpu.sim.proofs.smt import solve
from amaranth_tpu.sim.rtl.ring_buckets import ring_core

TIMEOUT = 600


def stands_still(script):
    return solve(script, timeout=TIMEOUT).result


# promise: ring-no-deadlock
@pytest.mark.parametrize("size", [2, 3, 8, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 5, 6, 7))])
def test_standstill(size):
    assert stands_still(standstill_script(size)) == "unsat"


def test_segment_longer_than_fifo():
    assert stands_still(standstill_script(3, beyond=1)) == "sat"


@pytest.mark.slow
@pytest.mark.parametrize("before", range(0, 48, 8))
@pytest.mark.parametrize("size, segment, pauses", [(2, 2, 10), (2, 4, 10), (3, 2, 8)])
def test_whole_ring_does_not_deadlock(size, segment, pauses, before):
    """No stall pattern deadlocks a whole ring during an operation and the start of the next one (bounded proof, must be
    unsatisfiable)."""
    script = ring_script(ring_core(ring_depth=4), size=size, segment=segment, operations=2, before=before, pauses=pauses)
    assert stands_still(script) == "unsat"


@pytest.mark.slow
def test_long_segments_can_deadlock():
    """A segment two vectors longer than the FIFO can deadlock, because a stalled unit has one more vector in flight."""
    script = ring_script(ring_core(ring_depth=4), size=2, segment=6, operations=1, before=24, pauses=12)
    assert stands_still(script) == "sat"

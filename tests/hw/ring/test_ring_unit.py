# amaranth: UnusedElaboratable=no
"""Tests of rings of ring units against the golden sums, covering result bits, and the numbers of words, reads, writes and
cycles."""

import numpy as np
import pytest

from amaranth_tpu.hw.cycles import ring_cycles
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.sim.golden.ring import words_sent
from amaranth_tpu.sim.rtl.ports import simulate
from amaranth_tpu.sim.rtl.ring_buckets import exhaustive_links, random_bucket, ring_core, run_buckets
from ring_units import RingUnits, run_bucket
from seeds import seed
from suites import slow


async def buckets(ports, rng, *, config, size, count, **links):
    numbers = np.random.default_rng(rng.getrandbits(32))
    for _ in range(count):
        bucket = random_bucket(numbers, config, size)
        right, f = bucket.expected(), bucket.fields
        cycles, units = await run_bucket(ports, rng, config, bucket, limit=2000, **links)
        assert cycles is not None, f"{f} hangs"
        for rank, unit in enumerate(units):
            assert (unit.memory == right[rank]).all(), f"core {rank} of {size}, {f}"
        own = f["rounds"] * f["segment"]
        words = words_sent(f["mode"], size, own, config.n) * 2 // config.n
        assert all((unit.sent, unit.received, unit.taken) == (words, words, words) for unit in units)
        assert all(unit.unseen <= own for unit in units), "`events.moves` without a task"
        reads = own * (1 if f["mode"] is RingMode.ALL_GATHER else size)
        assert all(unit.reads == reads for unit in units)
        assert all(unit.writes == own * (1 if f["mode"] is RingMode.REDUCE_SCATTER else size) for unit in units)


# promise: ring-once
@pytest.mark.parametrize(
    "size, count, links",
    [(1, 2, dict(grant=0.7)), (2, 2, dict(stall=0.3, late=20)), *slow((3, 4, dict(latency=9, stall=0.2, grant=0.6, late=50)))],
    ids=str,
)
def test_random(size, count, links):
    config = ring_core()
    simulate(RingUnits(config=config, size=size), buckets, seed=seed(), config=config, size=size, count=count, **links)


# promise: ring-bits, ring-unchanged, ring-modes, ring-rounds
@pytest.mark.parametrize(
    "size, latency", slow((3, 1), (2, 0), (8, 3), *((size, latency) for size in range(1, 9) for latency in (0, 1, 20, 256)))
)
def test_random_rings_in_verilator(rng, size, latency):
    """The results of 60 random operations match the golden sums bit for bit, on rings of 1 to 8 units with random link latency
    and stalls, in Verilator."""
    config = ring_core()
    drawn = [random_bucket(rng, config, size) for _ in range(60)]
    links = [
        dict(latency=latency, stall=share, busy=share, late=index, seed=index) for index in range(20) for share in (0, 0.2, 0.6)
    ]
    for bucket, result in zip(drawn, run_buckets(config, drawn, links)):
        assert result.cycles is not None, f"{bucket.fields} hangs"
        assert all((found == right).all() for found, right in zip(result.memories, bucket.expected())), bucket.fields


# promise: ring-links
@pytest.mark.parametrize(
    "size, cycles, latency",
    slow((3, 2, 1), (2, 3, 0), *((*sizes, latency) for sizes in ((2, 7), (3, 4)) for latency in (0, 1, 3))),
)
def test_every_pattern_of_pauses(rng, size, cycles, latency):
    """Results match the golden sums for every stall pattern of `cycles` cycles, on rings whose FIFOs hold one segment. With
    latency 0 a stall clears `tready` and `tvalid`; otherwise vectors on the link move on."""
    config = ring_core(unified_buffer_depth=16, ring_depth=4)
    fields = dict(mode=RingMode.ALL_REDUCE, buffer=0, result=0, segment=4, stride=4, rounds=1)
    bucket = random_bucket(rng, config, size, **fields)
    right = bucket.expected()
    for start in range(4, 40, cycles):
        links = [{**link, "latency": latency, "limit": 200} for link in exhaustive_links(size, start, cycles)]
        for link, result in zip(links, run_buckets(config, [bucket] * len(links), links)):
            assert result.cycles is not None, f"hangs with {link}"
            assert all((found == wanted).all() for found, wanted in zip(result.memories, right)), link


@pytest.mark.slow
def test_segment_longer_than_the_fifo_hangs(rng):
    """A segment longer than the FIFO deadlocks. This shows that the test bench detects a hang and that the decoder must refuse
    such segments."""
    config = ring_core(ring_depth=4)
    drawn = [
        random_bucket(rng, config, 3, mode=RingMode.ALL_REDUCE, buffer=0, result=0, segment=segment, stride=segment, rounds=1)
        for segment in (4, 7)
    ]
    found = [result.cycles for result in run_buckets(config, drawn, [{}, {}])]
    assert found[0] is not None and found[1] is None


@pytest.mark.parametrize("mode", RingMode)
@pytest.mark.parametrize("latency", [4, *slow(0, 64, 256)])
def test_cycles(rng, latency, mode):
    """The measured cycles of an all-reduce are within 2 % or 20 cycles of the formula. The measured cycles of the other modes
    are within 4 % or 20 cycles."""
    config = ring_core(unified_buffer_depth=2048, ring_depth=256, cell_stages=4)
    sizes = [(size, segment, rounds) for size in (2, 3, 8) for segment, rounds in ((1, 5), (7, 3), (60, 2), (240, 1))]
    drawn = [
        random_bucket(rng, config, size, mode=mode, buffer=0, segment=segment, rounds=rounds, stride=segment * rounds, result=0)
        for size, segment, rounds in sizes
        if mode is not RingMode.ALL_GATHER or segment * rounds * size < 1000
    ]
    for bucket in drawn:
        if mode is RingMode.ALL_GATHER:
            bucket.fields["result"] = 1024
    for bucket, result in zip(drawn, run_buckets(config, drawn, [dict(latency=latency)] * len(drawn))):
        formula = ring_cycles(config, mode, bucket.size, bucket.fields["segment"], bucket.fields["rounds"], latency)
        share = 0.02 if mode is RingMode.ALL_REDUCE else 0.04
        assert abs(result.cycles - formula) <= max(20, share * formula), f"{bucket.fields}: {result.cycles}, not {formula}"

# amaranth: UnusedElaboratable=no
"""Tests of the ring unit over several runs, covering runs that end early, the state after a flush, and a neighbour that is a run
ahead."""

import numpy as np
import pytest

from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import Fault, RingMode
from amaranth_tpu.sim.rtl.ports import simulate
from amaranth_tpu.sim.rtl.ring_buckets import random_bucket, ring_core
from ring_loop import RingLoop, looped
from seeds import seed
from suites import slow

CONFIG = ring_core(unified_buffer_depth=64, ring_depth=4)


def operation(rng, loop, **fields):
    """Draws a random operation and memory. Returns the fields, the rank, and the expected memory."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    bucket = random_bucket(numbers, CONFIG, loop.size, **fields)
    f, rank, loop.memory = bucket.fields, rng.randrange(loop.size), bucket.memories[0].copy()
    rows = np.arange(f["segment"] * f["rounds"])
    each = f["stride"] * np.arange(loop.size)[:, None] + rows
    reads = f["buffer"] + (rows if f["mode"] is RingMode.ALL_GATHER else each)
    expected = loop.memory.copy()
    places = f["result"] + (rows if f["mode"] is RingMode.REDUCE_SCATTER else each)
    expected[places] = looped(f["mode"], loop.memory[reads], rank, loop.size)
    return f, rank, expected


async def early_ends(ports, rng, *, size, count):
    loop, ended, offered = RingLoop(ports, rng, CONFIG, size), 0, 0
    for number in range(count):
        loop.grant, loop.moves = rng.choice((1, 0.5)), rng.choice((1, 0.5, 0.1))
        fields, rank, _ = operation(rng, loop)
        start = rng.randrange(1, 8)
        # As often as not, about when the operation is taken.
        length = start + rng.randrange(3) if rng.random() < 0.5 else rng.randrange(1, 60)
        if number % 3 == 0:  # in the middle of an offer
            loop.moves, length = 0, 70 + rng.randrange(9)
        ended += not await loop.run(fields, rank, start=start, length=length)
        loop.moves = 0
        await loop.rest(rng.randrange(1, 6))
        offered += loop.offer is not None
        loop.stale = number % 6 == 0  # the next run starts with the pending offer, which is accepted later
        loop.moves = 0 if loop.stale else 0.5
        await loop.rest(rng.randrange(1, 20) + 30 * (number % 2))  # vectors in flight may arrive now, or during the flush
        await loop.rest(40, flush=True)
        assert not loop.link and (loop.offer is None or loop.stale), "a flush does not take what comes"
        loop.moves = 0.1 if loop.stale else 1
        fields, rank, expected = operation(rng, loop)
        assert await loop.run(fields, rank, start=rng.randrange(2))
        await loop.rest(rng.randrange(2, 5))
        assert (loop.memory == expected).all(), f"run {number}: {fields}"
    return ended, offered


@pytest.mark.parametrize("size, count", [(2, 8), *slow((1, 100), (2, 600))])
def test_early_ends(size, count):
    ended, offered = simulate(RingUnit(config=CONFIG), early_ends, seed=seed(), size=size, count=count)
    assert ended > count / 3 and (size == 1 or offered >= count // 3), (ended, offered)


async def ends_anywhere(ports, rng, *, lengths):
    """Ends runs in each of `lengths` consecutive cycles of an all-reduce without stalls, and checks that no further task
    begins."""
    loop, first = RingLoop(ports, rng, CONFIG, 2), rng.randrange(20, 40)
    fields = dict(segment=CONFIG.ring_depth, rounds=4, stride=16, buffer=0, result=32, mode=RingMode.ALL_REDUCE)
    for length in range(first, first + lengths):
        fields, rank, _ = operation(rng, loop, **fields)
        assert not await loop.run(fields, rank, length=length)
        await loop.rest(5)
        await loop.rest(15, flush=True)


@pytest.mark.slow
def test_no_task_begins_after_a_run():
    simulate(RingUnit(config=CONFIG), ends_anywhere, seed=seed(), lengths=12)


async def ahead(ports, rng, *, count):
    """Checks that vectors which the neighbour sends ahead for the next runs do not affect the present run."""
    loop = RingLoop(ports, rng, CONFIG, 2)
    for number in range(count):
        loop.loop, loop.moves, loop.grant = True, 1, rng.choice((1, 0.4))
        loop.came.clear()
        fields, rank, expected = operation(rng, loop, rounds=1)
        before = loop.memory.copy()
        assert await loop.run(fields, rank)
        assert (loop.memory == expected).all()
        await loop.rest(4)
        loop.loop, beats = False, list(loop.came)
        loop.link.extend(beats * 3)
        for again in range(3):
            loop.memory = before.copy()
            assert await loop.run(fields, rank, start=rng.randrange(20))
            await loop.rest(rng.randrange(2, 9))
            assert (loop.memory == expected).all(), f"operation {number}, the same for time {again}: {fields}"
            missing = 3 * len(beats) - (len(loop.came) - len(beats))
            assert missing == max(0, (2 - again) * len(beats) - CONFIG.ring_depth), "not as many places as there are"
        assert not loop.link


# promise: ring-between-runs
@pytest.mark.parametrize("count", [6, *slow(100)])
def test_neighbour_ahead(count):
    simulate(RingUnit(config=CONFIG), ahead, seed=seed(), count=count)


async def longest(ports, rng):
    loop = RingLoop(ports, rng, CONFIG, 2)
    fields = dict(segment=CONFIG.ring_depth, rounds=2, stride=8, buffer=0, result=0, mode=RingMode.ALL_REDUCE)
    fields, rank, expected = operation(rng, loop, **fields)
    assert await loop.run(fields, rank) and (loop.memory == expected).all()


def test_longest_segment():
    simulate(RingUnit(config=CONFIG), longest, seed=seed())


async def wrong_marks(ports, rng, *, count):
    """Replays the vectors that an operation received with one wrong mark (`tuser` or `tlast`), and checks that the unit never
    accepts that vector."""
    loop = RingLoop(ports, rng, CONFIG, 2)
    for _ in range(count):
        loop.loop, loop.faulty = True, False
        loop.came.clear()
        fields, rank, expected = operation(rng, loop)
        before = loop.memory.copy()
        assert await loop.run(fields, rank)
        await loop.rest(4)
        place = rng.randrange(len(loop.came))
        bit = rng.randrange(9 if "tuser" in loop.marks else 1)
        marks = list(loop.came[place])
        marks[1 + (bit > 0)] ^= 1 << max(bit - 1, 0)
        loop.link.extend([*loop.came[:place], marks, *loop.came[place + 1 :]])
        loop.memory, loop.loop, loop.faulty, loop.fault, loop.taken = before.copy(), False, True, None, 0
        slot = rng.randrange(loop.config.in_flight)
        assert not await loop.run(fields, rank, slot=slot) and loop.fault == (Fault.RING.value, slot), (
            f"{fields}, vector {place}, {bit}"
        )
        changed = (loop.memory != before).any(axis=1)
        assert (loop.memory[changed] == expected[changed]).all() and loop.taken == place
        await loop.rest(30, flush=True)
        loop.fault = None


# promise: ring-marks, ring-tuser
@pytest.mark.parametrize("count", [12, *slow(200)])
def test_wrong_marks(count):
    simulate(RingUnit(config=CONFIG), wrong_marks, seed=seed(), count=count)

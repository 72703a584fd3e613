# amaranth: UnusedElaboratable=no
"""The ring unit in rings of some of them: every bit against the golden sums, words, reads, writes and cycles."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.sim.golden.ring import exchange, words_sent
from amaranth_tpu.sim.rtl.ports import simulate
from ring_units import Bucket, RingUnits, run_bucket
from seeds import seed


def core(n=2, ring_depth=8, **changes):
    return Config(n=n, unified_buffer_depth=256, accumulator_depth=16, ring=True, ring_depth=ring_depth, **PLAIN, **changes)


def random_bucket(rng, config, size, **fields):
    """Numbers of all exponents, and any bits among them."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    rows, words = config.unified_buffer_depth, config.n // 2
    values = numbers.normal(size=(size, rows, words)) * 2.0 ** numbers.integers(-5, 5, (size, rows, words))
    bits = numbers.integers(0, 1 << 32, (size, rows, words), dtype=np.uint32)
    words = np.where(numbers.random((size, rows, words)) < 0.9, values.astype(np.float32).view(np.uint32), bits)
    return Bucket(config, words.view(np.uint16), **fields)


def expected(bucket):
    """Every memory afterwards, by the golden model."""
    f = bucket.fields
    rows = np.arange(f["segment"] * f["rounds"])
    each = f["stride"] * np.arange(bucket.size)[:, None] + rows
    reads = f["buffer"] + (rows if f["mode"] is RingMode.ALL_GATHER else each)
    writes = f["result"] + (rows if f["mode"] is RingMode.REDUCE_SCATTER else each)
    memories = [memory.copy() for memory in bucket.memories]
    for memory, result in zip(memories, exchange(f["mode"], [memory[reads] for memory in bucket.memories])):
        memory[writes] = result
    return memories


def random_fields(rng, config, size):
    mode = rng.choice([*RingMode])
    rounds = rng.randrange(1, 4)
    segment = rng.randrange(1, config.ring_depth + 1)
    while size * segment * rounds > 120:
        segment = max(1, segment // 2)
        rounds = max(1, rounds - 1)
    stride = segment * rounds + rng.randrange(3)
    buffer = rng.randrange(4)
    result = buffer if rng.random() < 0.5 and mode is not RingMode.ALL_GATHER else 128 + rng.randrange(4)
    return dict(mode=mode, buffer=buffer, result=result, segment=segment, stride=stride, rounds=rounds)


async def buckets(ports, rng, *, config, size, count, **links):
    for _ in range(count):
        bucket = random_bucket(rng, config, size, **random_fields(rng, config, size))
        right, f = expected(bucket), bucket.fields
        cycles, units = await run_bucket(ports, rng, bucket, limit=2000, **links)
        assert cycles is not None, f"{f} hangs"
        for rank, unit in enumerate(units):
            assert (unit.memory == right[rank]).all(), f"core {rank} of {size}, {f}"
        own = f["rounds"] * f["segment"]
        words = words_sent(f["mode"], size, own, config.n) * 2 // config.n
        assert all((unit.sent, unit.received) == (words, words) for unit in units)
        reads = own * (1 if f["mode"] is RingMode.ALL_GATHER else size)
        assert all(unit.reads == reads for unit in units)
        assert all(unit.writes == own * (1 if f["mode"] is RingMode.REDUCE_SCATTER else size) for unit in units)


@pytest.mark.parametrize(
    "size, links",
    [
        (1, dict(grant=0.7)),
        (2, dict(stall=0.3, late=20)),
        (3, dict(latency=9, stall=0.2, grant=0.6, late=50)),
        *(
            pytest.param(size, dict(latency=latency, stall=stall, grant=1 - stall, late=99), marks=pytest.mark.slow)
            for size in range(2, 9)
            for latency in (0, 5, 40, 256)
            for stall in (0, 0.5)
        ),
    ],
)
def test_random(size, links):
    config = core()
    simulate(RingUnits(config=config, size=size), buckets, seed=seed(), config=config, size=size, count=4, **links)


async def timed(ports, rng, *, config, latency, **fields):
    size = fields.pop("size")
    bucket = random_bucket(rng, config, size, mode=RingMode.ALL_REDUCE, buffer=0, result=0, **fields)
    cycles, _ = await run_bucket(ports, rng, bucket, latency=latency)
    return cycles


@pytest.mark.parametrize(
    "size, segment, rounds, latency",
    [
        (2, 1, 1, 0),
        (2, 8, 5, 0),
        (3, 8, 2, 20),
        *(
            pytest.param(size, segment, rounds, latency, marks=pytest.mark.slow)
            for size in (2, 4, 8)
            for segment, rounds in ((1, 8), (8, 3), (3, 4))
            for latency in (0, 4, 64, 256)
        ),
    ],
)
def test_cycles(size, segment, rounds, latency):
    """Of the contract: within 2 % or 20 of the formula."""
    config = core(ring_depth=8)
    unit = RingUnits(config=config, size=size)
    fields = dict(size=size, segment=segment, rounds=rounds, stride=segment * rounds)
    cycles = simulate(unit, timed, seed=seed(), config=config, latency=latency, **fields)
    hop = latency + unit.units[0].latency + 1
    formula = rounds * 2 * (segment + (size - 1) * max(hop, segment))
    assert abs(cycles - formula) <= max(20, 0.02 * formula), f"{cycles} cycles, the formula says {formula}"

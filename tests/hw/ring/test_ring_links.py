"""Tests of a core between third-party AXI4-Stream agents, which act as its neighbour in a ring of two and check its links."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode
from amaranth_tpu.sim.golden.ring import held_by, ring_sum
from amaranth_tpu.sim.rtl.ring_buckets import Bucket, random_bucket
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from machine_programs import HALT, program
from seeds import seed
from suites import slow

CONFIG = Config(n=2, unified_buffer_depth=64, accumulator_depth=8, weight_fifo_depth=2, ring=True, ring_depth=8, **PLAIN)
ROWS = CONFIG.unified_buffer_depth
REGIONS = {"MODEL": [0, 0x400], "INPUT": [0x400, 0x400], "OUTPUT": [0x800, 0x400]}


def segments(bucket):
    """Returns the vectors that core 0 and core 1 send in a ring of two, in order, for each round: uint16 arrays (segment, n)."""
    f = bucket.fields
    for place in range(0, f["segment"] * f["rounds"], f["segment"]):
        rows = np.arange(f["segment"]) + f["buffer"] + place
        if f["mode"] is RingMode.ALL_GATHER:
            yield tuple([memory[rows]] for memory in bucket.memories)
            continue
        own = [np.stack([memory[rows + f["stride"] * s] for memory in bucket.memories]).view("<u4") for s in range(2)]
        sums = [ring_sum(own[s], s).view("<u2") for s in range(2)]
        both = f["mode"] is RingMode.ALL_REDUCE
        yield tuple([own[rank][rank].view("<u2"), *([sums[held_by(rank, 2)]] if both else [])] for rank in range(2))


def user_bits(segment, mode, rounds):
    """Returns the `tuser` of a vector: segment, mode and rounds, as defined in the datasheet."""
    return segment | mode.value << 3 | rounds % 8 << 5


# promise: ring-links
@pytest.mark.slow
@pytest.mark.parametrize("pause, early", [*slow((0.5, True)), (0.3, False)])
def test_neighbour(rng, tmp_path, pause, early):
    """The core's ring operations match the machine model bit for bit. With `early`, the neighbour sends all vectors at once, and
    the core stalls the link. Otherwise the neighbour sends each segment at the time at which a core would send it."""
    drawn = random_bucket(rng, CONFIG, 2)
    memories, image, words, links, expected, rounds = drawn.memories, bytearray(0xC00), [], [], [], 0
    image[0x400 : 0x400 + ROWS * CONFIG.vector_bytes] = memories[0].astype("<u2").tobytes()
    for mode in (*RingMode, *RingMode):
        fields = random_bucket(rng, CONFIG, 2, mode=mode).fields
        if mode is RingMode.ALL_GATHER:
            fields["result"] = ROWS // 2
        bucket = Bucket(fields, memories)
        for ours, theirs in segments(bucket):
            first = 1 if mode is RingMode.ALL_GATHER else 0  # the segment that core 0 sends first; core 1 sends the other
            links += [
                {
                    "data": data.tobytes().hex(),
                    "user": user_bits((1 + first - position) % 2, mode, rounds),
                    "after": 0 if early else len(expected) + position,
                }
                for position, data in enumerate(theirs)
            ]
            expected += [
                [data.tobytes().hex(), user_bits((first - position) % 2, mode, rounds)] for position, data in enumerate(ours)
            ]
            rounds += 1
        rounds += 1
        memories = bucket.expected()
        words.append((Opcode.RING, fields))
    rows = dict(rows=ROWS, buffer=0)
    words = [(Opcode.LOAD, dict(rows, region=Region.INPUT)), *words, (Opcode.STORE, dict(rows, region=Region.OUTPUT)), HALT]
    code = program(CONFIG, *words)
    assert len(code) <= 0x400
    image[: len(code)] = code
    (tmp_path / "before").write_bytes(image)

    result = Simulation(simulator="icarus", verilog=verilog_of(CONFIG), top="tpu").run(
        "amaranth_tpu.sim.benches.bench_ring_links",
        timeout=60,
        seed=seed() & 0x7FFFFFFF,
        arguments={
            "image": str(tmp_path / "before"),
            "output": str(tmp_path / "after"),
            "regions": REGIONS,
            "size": 2,
            "links": links,
            "pause": pause,
        },
    )
    assert result["frames"] == expected
    words = sum(len(frame) for frame, _ in expected) // 8
    assert result["ring_sent"] == result["ring_received"] == words
    image[0x800 : 0x800 + ROWS * CONFIG.vector_bytes] = memories[0].astype("<u2").tobytes()
    assert (tmp_path / "after").read_bytes() == image

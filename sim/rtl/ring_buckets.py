"""Bulk simulation of ring units in rings, with Verilator and without cocotb. It yields results, deadlocks and cycles."""

import functools
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout
from amaranth_tpu.hw.tools.process import build_directory

from ..golden.ring import exchange
from .ports import pack
from .runner import SimulationError
from .streams import compile_block

__all__ = ["Bucket", "BucketResult", "ring_core", "random_bucket", "exhaustive_links", "run_buckets"]

_HANGS = (1 << 32) - 1


def ring_core(**changes):
    """Returns the configuration of the ring unit for :func:`run_buckets`, with n = 2, so that a vector is one binary32. `changes`
    are further :class:`hw.config.Config` fields."""
    return Config(
        **{"n": 2, "unified_buffer_depth": 256, "accumulator_depth": 16, "ring": True, "ring_depth": 8, **PLAIN, **changes}
    )


@dataclass
class Bucket:
    """A test case: one RING instruction, and the initial memory of every core."""

    fields: dict  # fields of the RING instruction
    memories: list

    @property
    def size(self):
        """Returns the number of cores in the ring."""
        return len(self.memories)

    def expected(self):
        """Computes the final memory of every core with the golden model."""
        f = self.fields
        rows = np.arange(f["segment"] * f["rounds"])
        each = f["stride"] * np.arange(self.size)[:, None] + rows
        reads = f["buffer"] + (rows if f["mode"] is RingMode.ALL_GATHER else each)
        writes = f["result"] + (rows if f["mode"] is RingMode.REDUCE_SCATTER else each)
        memories = [memory.copy() for memory in self.memories]
        for memory, result in zip(memories, exchange(f["mode"], [memory[reads] for memory in self.memories])):
            memory[writes] = result
        return memories


def random_bucket(rng, config, size, *, rows=None, **fields):
    """Returns a random test case. Numbers are mostly ordinary; some have arbitrary bits. Fields of the RING instruction that are
    not given are random.

    Parameters
    ----------
    rng : numpy.random.Generator
    rows : int or None
        Rows of memory per core. Default: depth of the unified buffer.
    """
    rows = rows or config.unified_buffer_depth
    mode = RingMode(int(rng.integers(3)))
    most = max(1, (rows // 2 - 8) // size)
    segment = int(rng.integers(1, min(config.ring_depth, most) + 1))
    rounds = int(rng.integers(1, min(4, most // segment) + 1))
    stride = min(most, segment * rounds + int(rng.integers(3)))
    buffer = int(rng.integers(4))
    in_place = mode is not RingMode.ALL_GATHER and rng.random() < 0.5
    result = buffer if in_place else rows // 2 + int(rng.integers(4))
    drawn = dict(mode=mode, buffer=buffer, result=result, segment=segment, stride=stride, rounds=rounds)
    shape = size, rows, config.n // 2
    values = (rng.normal(size=shape) * 2.0 ** rng.integers(-5, 5, shape)).astype(np.float32).view(np.uint32)
    words = np.where(rng.random(shape) < 0.9, values, rng.integers(0, 1 << 32, shape, dtype=np.uint32))
    return Bucket(drawn | fields, list(words.view(np.uint16)))


@dataclass
class BucketResult:
    """The result of a test case.

    `cycles` is None after a deadlock. `memories` is the final memory of every core. `counts` has the numbers of vectors sent,
    received, read and written, for every core.
    """

    cycles: int | None
    memories: list
    counts: np.ndarray


@functools.cache
def _program(config):
    return compile_block(RingUnit(config=config), Path(__file__).with_suffix(".cpp").read_text())


def _job(config, bucket, latency, stall, busy, late, seed, limit):
    fields = {name: getattr(value, "value", value) for name, value in bucket.fields.items()}
    operation = pack(ring_layout(config), tag=0, **fields)
    head = [bucket.size, latency, round(256 * stall), round(256 * busy), late, seed, limit, len(bucket.memories[0])]
    head += [operation >> 32 * part & 0xFFFFFFFF for part in range(8)]
    return np.array(head, "<u4").tobytes() + np.stack(bucket.memories).astype("<u2").tobytes()


def exhaustive_links(size, start, cycles):
    """Returns `links` for :func:`run_buckets` in which links stall only in the `cycles` cycles starting at `start`. There is one
    entry for every pattern of stalls in these cycles."""
    assert size * cycles <= 32
    return [{"stall": 2.0, "late": start, "seed": pattern} for pattern in range(1 << size * cycles)]


def run_buckets(config, buckets, links, *, timeout=600):
    """Simulates test cases one after the other. Raises SimulationError if a unit reports a fault, or accesses a row beyond its
    memory.
    Returns a list of :class:`BucketResult`.

    Parameters
    ----------
    config : Config
        Configuration from :func:`ring_core`, with n = 2.
    links : sequence of dict
        For each test case: `latency` of the links in cycles; probability of a stall per cycle for a link (`stall`) and for the
        memory port (`busy`); number of cycles within which the cores start (`late`); `seed`; and `limit`, the number of cycles
        without progress that counts as a deadlock.
    """
    usual = dict(latency=0, stall=0.0, busy=0.0, late=0, seed=1, limit=3000)
    place = build_directory() / "runs"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ring-", dir=place) as name:
        folder = Path(name)
        with open(folder / "jobs", "wb") as file:
            for bucket, link in zip(buckets, links, strict=True):
                file.write(_job(config, bucket, **usual | link))
        done = subprocess.run(
            [_program(config), folder / "jobs", folder / "results"], capture_output=True, text=True, timeout=timeout
        )
        if done.returncode:
            raise SimulationError(f"ring units: {done.stderr.strip() or f'status {done.returncode}'}")
        words = np.fromfile(folder / "results", "<u4")
    results, position = [], 0
    for bucket in buckets:
        size, rows = bucket.size, len(bucket.memories[0])
        cycles, counts = int(words[position]), words[position + 1 : position + 1 + 4 * size].reshape(size, 4)
        position += 1 + 4 * size
        memories = words[position : position + size * rows].view("<u2").reshape(size, rows, 2)
        position += size * rows
        results.append(BucketResult(None if cycles == _HANGS else cycles, list(memories), counts))
    return results

"""Tests of a ring of cores, covering the order of sums against numpy's binary32 additions, and programs on the instruction-level
model."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Fault, Opcode, Region, RingMode
from amaranth_tpu.sim.golden.arithmetic import add
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from amaranth_tpu.sim.golden.isa_ring import MachineRing
from amaranth_tpu.sim.golden.ring import all_gather, all_reduce, reduce_scatter, ring_sum, words_sent
from machine_programs import HALT, program, random_binary32

CONFIG = Config(n=4, unified_buffer_depth=256, accumulator_depth=32, ring=True, ring_depth=8)
N = CONFIG.n


def ring_of(size, words):
    image = program(CONFIG, *words)
    return MachineRing(CONFIG, [{Region.MODEL: image, Region.OUTPUT: bytearray(4096)} for _ in range(size)])


@pytest.mark.parametrize("size", range(2, 9))
def test_order_of_the_sums(rng, size):
    """All-reduce adds the values of the cores in ring order, starting with core s for segment s. The sums match binary32
    additions in numpy, which depend on the order."""
    own = (rng.normal(size=(size, size, 20)) * 2.0 ** rng.integers(-8, 8, (size, size, 20))).astype(np.float32)
    sums = all_reduce(own.view(np.uint32)).view(np.float32)
    for s in range(size):
        total = own[s, s].copy()
        for step in range(1, size):
            total += own[(s + step) % size, s]
        assert (sums[s] == total).all()
    assert size == 2 or (sums != own.sum(axis=0, dtype=np.float32)).any()
    held = reduce_scatter(own.view(np.uint32)).view(np.float32)
    assert all((held[rank] == sums[(rank + 1) % size]).all() for rank in range(size))
    assert (all_gather(held) == sums).all()


def test_sums_are_those_of_a_cell():
    tiny, nan, infinity = 0x00000001, 0x7FC00001, 0x7F800000
    parts = np.array([[tiny, nan, infinity], [tiny, 0, infinity | 1 << 31]], np.uint32)
    assert ring_sum(parts, 0).tolist() == [0, 0x7FC00000, 0x7FC00000]
    assert ring_sum(parts[:1], 0).tolist() == parts[0].tolist()


@pytest.mark.parametrize("mode", RingMode)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_source_of_each_vector(rng, mode, size):
    """Each vector of a RING comes from the expected core and row, and all other vectors keep their values."""
    segment, stride, rounds, buffer, result = 3, 9, 2, 5, 120
    fields = dict(mode=mode, buffer=buffer, result=result, segment=segment, stride=stride, rounds=rounds)
    ring = ring_of(size, [(Opcode.RING, fields), HALT])
    before = []
    for machine in ring.machines:
        machine.buffer[:] = random_binary32(rng, (len(machine.buffer), N // 2)).view(np.uint16)
        before.append(machine.buffer.copy())
    ring.run()
    for rank, machine in enumerate(ring.machines):
        expected = before[rank].copy()
        for row in range(rounds * segment):
            for s in range(size):
                if mode is RingMode.ALL_GATHER:
                    expected[result + s * stride + row] = before[(s - 1) % size][buffer + row]
                    continue
                total = before[s][buffer + s * stride + row].view(np.uint32)
                for step in range(1, size):
                    total = add(total, before[(s + step) % size][buffer + s * stride + row].view(np.uint32))
                if mode is RingMode.ALL_REDUCE:
                    expected[result + s * stride + row] = total.view(np.uint16)
                elif s == (rank + 1) % size:
                    expected[result + row] = total.view(np.uint16)
        assert (machine.buffer == expected).all()


def test_scatter_and_gather_are_all_reduce(rng):
    """Reduce-scatter followed by all-gather equals an all-reduce in place, and a STORE waits for their results."""
    fields = dict(buffer=0, result=0, segment=4, stride=4, rounds=1)
    store = (Opcode.STORE, dict(region=Region.OUTPUT, rows=12, buffer=0))
    apart = [
        (Opcode.RING, dict(fields, mode=RingMode.REDUCE_SCATTER, result=100)),
        (Opcode.RING, dict(fields, mode=RingMode.ALL_GATHER, buffer=100)),
        store,
        HALT,
    ]
    rings = [ring_of(3, [(Opcode.RING, fields), store, HALT]), ring_of(3, apart)]
    values = random_binary32(rng, (3, CONFIG.unified_buffer_depth, N // 2)).view(np.uint16)
    for ring in rings:
        for machine, own in zip(ring.machines, values):
            machine.buffer[:] = own
        ring.run()
    results = [bytes(machine.regions[Region.OUTPUT]) for ring in rings for machine in ring.machines]
    assert len(set(results)) == 1 and any(results[0])


FIELDS = dict(mode=RingMode.ALL_REDUCE, segment=8, stride=8, rounds=2)


@pytest.mark.parametrize(
    "changes, cause",
    [
        ({"segment": 9}, Fault.LENGTH),
        ({"segment": 0}, Fault.LENGTH),
        ({"rounds": 0}, Fault.LENGTH),
        ({"mode": 3}, Fault.ILLEGAL),
        ({"buffer": 224}, None),
        ({"buffer": 225}, Fault.ADDRESS),
        ({"result": 225}, Fault.ADDRESS),
        ({"result": 240, "mode": RingMode.REDUCE_SCATTER}, None),
        ({"result": 241, "mode": RingMode.REDUCE_SCATTER}, Fault.ADDRESS),
        ({"buffer": 240, "mode": RingMode.ALL_GATHER}, None),
        ({"buffer": 241, "mode": RingMode.ALL_GATHER}, Fault.ADDRESS),
        ({"stride": 120}, None),
        ({"stride": 121}, Fault.ADDRESS),
    ],
)
def test_refused(changes, cause):
    ring = ring_of(3, [(Opcode.RING, FIELDS | changes), HALT])
    if cause is None:
        return ring.run()
    with pytest.raises(MachineFault, match=cause.name):
        ring.run()


@pytest.mark.parametrize("rank, size", [(0, 0), (2, 2), (0, 9)])
def test_no_ring(rank, size):
    machine = Machine(CONFIG, {Region.MODEL: program(CONFIG, (Opcode.RING, FIELDS), HALT)}, rank=rank, size=size)
    with pytest.raises(MachineFault, match="RING at pc 0x0"):
        machine.run()


def test_missing_core_causes_timeouts():
    """If one core of three does not execute the RING, the other two end with TIMEOUT."""
    ring = ring_of(3, [(Opcode.RING, FIELDS), HALT])
    ring.machines[1].regions[Region.MODEL] = program(CONFIG, HALT)
    with pytest.raises(MachineFault, match="TIMEOUT"):
        ring.run()
    assert [fault and fault.cause for fault in ring.faults] == [Fault.TIMEOUT, None, Fault.TIMEOUT]


def test_words():
    assert words_sent(RingMode.ALL_REDUCE, 8, 64, 2) == 2 * 512 * 7 // 8
    assert words_sent(RingMode.REDUCE_SCATTER, 8, 64, 16) == words_sent(RingMode.ALL_GATHER, 8, 64, 16) == 512 * 8 * 7 // 8

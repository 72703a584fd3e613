# amaranth: UnusedElaboratable=no
"""Tests that cores whose RINGs do not match, and the runs that follow, end with a fault or with the machine model's bits."""

import pytest

from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode
from pod_runs import POD, play_pod, ring_program, run_machines
from suites import slow

HALT = (Opcode.HALT, {})
#: Rows of the buffer that the RINGs read or write.
ROWS = 160
LOAD = (Opcode.LOAD, dict(region=Region.INPUT, rows=ROWS, buffer=0))
STORE = (Opcode.STORE, dict(region=Region.OUTPUT, rows=ROWS, buffer=0))
FIELDS = dict(mode=RingMode.ALL_GATHER, buffer=0, result=128, segment=8, stride=8, rounds=1)
#: Cycles without progress until TIMEOUT; memory and links respond faster in these tests.
TIMEOUT = {"timeout": 600}


def ring(**changes):
    return Opcode.RING, FIELDS | changes


def causes(cores):
    return [core["fault"] and core["fault"][0] for core in cores]


def is_output_right(after, memories, regions):
    places = [slice(regions[name][0], sum(regions[name])) for name in ("OUTPUT", "SCRATCH")]
    return [all(found[place] == memory[place] for place in places) for found, memory in zip(after, memories)]


@pytest.mark.parametrize("mode", [RingMode.ALL_GATHER, *slow(*RingMode)])
def test_a_reset_without_a_flush_is_refused(rng, tmp_path, mode):
    """If a RING leaves vectors in the other core's link FIFO, the next RING faults after a mere reset. After a flush it matches
    the machine model bit for bit."""
    good = [LOAD, ring(mode=mode), STORE, HALT]
    runs = [[(good, TIMEOUT), ([HALT], TIMEOUT)], [(good, TIMEOUT)] * 2, [(good, TIMEOUT)] * 2]
    results, memories, after, regions = play_pod(rng, tmp_path, runs, recover=["flush", "reset", "flush"], apart=True)
    assert causes(results[0]) == ["TIMEOUT", None]
    assert [core["ring_state"]["held"] for core in results[0]] == [0, 1]
    assert results[0][0]["ring_state"]["refused"]
    assert causes(results[1]) == ["RING", "RING"]
    assert [core["fault"][1] for core in results[1]] == [POD.instruction_bytes] * 2
    assert causes(results[2]) == [None, None] and not any(any(core["ring_state"].values()) for core in results[2])
    run_machines(memories, regions[2])
    assert all(is_output_right(after, memories, regions[2]))


# promise: ring-after-reset
@pytest.mark.parametrize("size", [2, *slow(3)])
def test_first_ring_after_aresetn_needs_a_flush(rng, tmp_path, size):
    words = [LOAD, ring(), STORE, HALT]
    results, *_ = play_pod(rng, tmp_path, [[(words, TIMEOUT)] * size], recover=["reset"])
    assert causes(results[0]) == ["RING"] * size and all(core["ring_state"]["refused"] for core in results[0])


# promise: ring-refused
@pytest.mark.parametrize("first", [164, *slow(*range(100, 300, 8))])
@pytest.mark.parametrize("link_latency, delay", [(40, 0), *slow((0, 60))])
def test_ring_after_aresetn_of_one_core_is_refused(rng, tmp_path, link_latency, delay, first):
    """If one core is reset alone, vectors of the other core may still arrive, though that core ended with DONE. The next RING of
    the core that was reset faults, and no core takes these vectors for results."""
    load = (Opcode.LOAD, dict(region=Region.INPUT, rows=48, buffer=0))
    store = (Opcode.STORE, dict(region=Region.OUTPUT, rows=16, buffer=128))
    old, new = [load, ring(), HALT], [load, ring(buffer=40), store, HALT]
    limit, runs = {"timeout": 200}, []
    for cycle in (first, first + 4):
        runs += [[(old, limit | {"aresetn": cycle}), (old, limit | {"delay": delay})], [(new, limit)] * 2]
    recover = ["flush", "reset"] * 2
    results, *_ = play_pod(rng, tmp_path, runs, link_latency=link_latency, recover=recover, apart=True)
    assert [causes(cores)[0] for cores in results] == [None, "RING"] * 2
    assert all(causes(cores)[1] for cores in results[1::2]), "a core ends its RING without the other one"


# promise: ring-refused
def test_a_core_alone_needs_no_flush(rng, tmp_path):
    """A core with ring size 1 runs a RING without a flush after a reset, because it uses no link."""
    words = [LOAD, ring(), STORE, HALT]
    runs = [[([0xFF], {}), ([HALT], {})], [(words, {"rank": 0, "size": 1})] * 2]
    results, memories, after, regions = play_pod(rng, tmp_path, runs, recover=["flush", "reset"], apart=True)
    assert causes(results[0]) == ["ILLEGAL", None] and causes(results[1]) == [None, None]
    assert [core["ring_state"]["refused"] for core in results[1]] == [1, 0]
    for memory in memories:
        run_machines([memory], regions[1])
    assert all(is_output_right(after, memories, regions[1]))


# promise: ring-mismatch, ring-fewest-rounds
@pytest.mark.parametrize(
    "one, other",
    [
        ([ring(rounds=2), ring(buffer=40)], [ring(), ring(buffer=40, rounds=2)]),
        *slow(
            ([ring(mode=RingMode.REDUCE_SCATTER)], [ring()]),
            ([ring(segment=7)], [ring()]),
            ([ring(mode=RingMode.ALL_REDUCE, rounds=2)], [ring(mode=RingMode.ALL_REDUCE)]),
            ([ring(rounds=2)], [ring(), ring()]),
        ),
    ],
)
def test_mismatched_rings_fault(rng, tmp_path, one, other):
    """If the cores run RINGs of different modes or rounds, at least one core faults, even if both send equal numbers of
    vectors."""
    runs = [[([LOAD, *words, STORE, HALT], TIMEOUT) for words in (one, other)]]
    results, *_ = play_pod(rng, tmp_path, runs)
    assert "RING" in causes(results[0]) or causes(results[0]).count("TIMEOUT") == 1, causes(results[0])


@pytest.mark.slow
def test_two_cores_of_one_rank(rng, tmp_path):
    words = [LOAD, ring(mode=RingMode.ALL_REDUCE), STORE, HALT]
    results, *_ = play_pod(rng, tmp_path, [[(words, TIMEOUT), (words, TIMEOUT | {"rank": 0})]])
    assert "RING" in causes(results[0])


# promise: ring-waiting
@pytest.mark.parametrize("first", slow(3, 0, 6))
def test_ring_that_does_not_complete_times_out(rng, tmp_path, first):
    """If a RING does not complete, the core ends with the model's TIMEOUT and `fault_pc`. STOREs after earlier RINGs have the
    model's effect."""
    store = (Opcode.STORE, dict(region=Region.SCRATCH, rows=20, buffer=100))
    alone = [[LOAD, *[ring()] * count, store, STORE, HALT] for count in range(first, first + 4)]
    runs = [[(words, TIMEOUT), ([HALT], TIMEOUT)] for words in alone]
    results, memories, after, regions = play_pod(rng, tmp_path, runs, apart=True)
    for cores, places in zip(results, regions):
        faults = run_machines(memories, places)
        assert [core["fault"] for core in cores] == [fault and [fault.cause.name, fault.pc] for fault in faults]
        assert all(is_output_right(after, memories, places))


def misfit(rng, size):
    """Returns a program for each core of a ring. In some programs a RING is missing, repeated or changed."""
    words = ring_program(rng, size, int(rng.integers(2, 8)))
    programs = []
    for rank in range(size):
        own = list(words)
        if rank == 0 or rng.random() < 0.3:
            index = int(rng.choice([index for index, (opcode, _) in enumerate(own) if opcode is Opcode.RING]))
            fields = own[index][1]
            segment = int(rng.integers(1, fields["segment"] + 1))
            changes = [
                [],
                [own[index]] * int(rng.integers(2, 8)),
                [(Opcode.RING, fields | {"mode": RingMode(int(rng.integers(3))), "result": 128})],
                [(Opcode.RING, fields | {"segment": segment})],
                [(Opcode.RING, fields | {"rounds": int(rng.integers(1, 3))})],
            ]
            own[index : index + 1] = changes[int(rng.integers(len(changes)))]
        programs.append(own)
    return programs


# promise: ring-mismatch, ring-done, ring-done-bits
@pytest.mark.parametrize("size, link_latency", slow(*((size, latency) for size in (2, 3, 5) for latency in (0, 3))))
def test_random_misfits(rng, tmp_path, size, link_latency):
    """A core that ends with DONE matches the machine model bit for bit. If no core ends with the fault RING, the faults of all
    cores match the machine model."""
    drawn = [misfit(rng, size) for _ in range(4)]
    runs = [[(words, TIMEOUT | {"delay": int(rng.integers(50))}) for words in programs] for programs in drawn]
    results, memories, after, regions = play_pod(rng, tmp_path, runs, link_latency=link_latency, apart=True)
    for cores, places in zip(results, regions):
        faults, found = run_machines(memories, places), causes(cores)
        right = is_output_right(after, memories, places)
        assert set(found) <= {None, "RING", "TIMEOUT"}
        assert any(faults) == any(found), (faults, found)
        for fault, cause, bits in zip(faults, found, right):
            assert cause is not None or (fault is None and bits), (faults, found, right)
        if "RING" not in found:
            assert [core["fault"] for core in cores] == [fault and [fault.cause.name, fault.pc] for fault in faults]
            assert all(right)

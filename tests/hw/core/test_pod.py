# amaranth: UnusedElaboratable=no
"""Tests of cores in a ring against machine models, with third-party memories, and with a core that faults."""

import pytest

from amaranth_tpu.hw.config import ConfigError
from amaranth_tpu.hw.pod import Pod
from amaranth_tpu.hw.spec.isa import Opcode, RingMode
from amaranth_tpu.hw.verilog.export import pod_to_verilog
from amaranth_tpu.sim.golden.ring import words_sent
from pod_runs import POD, ring_program, run_pod
from suites import slow

HALT = (Opcode.HALT, {})


def words_of(words, size):
    """Returns the number of words that a core of a ring of `size` cores sends for the RINGs of a program."""
    rings = [fields for opcode, fields in words if opcode is Opcode.RING]
    return sum(words_sent(f["mode"], size, f["segment"] * f["rounds"], POD.n) for f in rings)


# promise: ring-bits
@pytest.mark.parametrize(
    "size, pause, link_latency",
    [(2, 0.2, 0), *slow((3, 0, 2), *((size, 0.3, latency) for size in range(2, 9) for latency in (0, 3)))],
)
def test_programs(rng, tmp_path, size, pause, link_latency):
    """Two consecutive runs match the machine models on all cores. A core may start the second run before its neighbour has ended
    the first run."""
    programs = [ring_program(rng, size, 4) for _ in range(2)]
    runs = [[(words, {"delay": int(rng.integers(200))}) for _ in range(size)] for words in programs]
    for words, cores in zip(programs, run_pod(rng, tmp_path, runs, pause=pause, link_latency=link_latency)):
        for core in cores:
            assert core["fault"] is None
            assert core["ring_sent"] == core["ring_received"] == words_of(words, size)


# promise: ring-fault-of-one
@pytest.mark.slow
def test_ring_recovers_after_one_core_faults(rng, tmp_path):
    """If one core faults in the middle of a program, the other core ends with TIMEOUT. After a flush both cores run without a
    fault."""
    words = ring_program(rng, 2, 4)
    second = [index for index, (opcode, _) in enumerate(words) if opcode is Opcode.RING][1]
    faulty = [*words[:second], 0xFF, HALT]
    ring = dict(mode=RingMode.ALL_REDUCE, buffer=0, result=0, stride=8, rounds=1)
    other = [[(Opcode.RING, dict(ring, segment=segment)), HALT] for segment in (8, 5)]
    good = [(words, {})] * 2
    runs = [[(words, {}), (faulty, {})], good, [(one, {}) for one in other], good]
    results = run_pod(rng, tmp_path, runs, check=False)
    step = POD.instruction_bytes
    assert [core["fault"] for core in results[0]] == [["TIMEOUT", results[0][0]["fault"][1]], ["ILLEGAL", second * step]]
    assert {core["fault"][0] for core in results[2]} <= {"RING", "TIMEOUT"} and "RING" in [c["fault"][0] for c in results[2]]
    for run in (1, 3):
        assert all(core["fault"] is None and core["ring_sent"] == words_of(words, 2) for core in results[run])


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"cores": 1}, "cores must be 2 to 8 in a ring, not 1"),
        ({"cores": 9}, "cores must be"),
        ({"cores": 2, "link_latency": -1}, "link_latency must not be negative, not -1"),
    ],
)
def test_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Pod(POD, **arguments)


# promise: pod-core-once
@pytest.mark.slow
def test_the_core_is_there_once():
    text = pod_to_verilog(POD, cores=4)
    assert text.count("\nmodule tpu (") == text.count("\nmodule tpu_array (") == 1
    assert all(f"  tpu core{rank} (" in text and f" core{rank}_irq" in text for rank in range(4))

# amaranth: UnusedElaboratable=no
"""Tests of the run control, covering start and end of runs, sticky faults, the exact cycle of a timeout, and the performance
counters."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.run_control import RunControl
from amaranth_tpu.hw.spec.isa import Fault
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow

#: A state, with events that coincide in it: at most one of the events takes effect.
MEET = {
    *(("RUN", *pair) for pair in (("fault", "halted"), ("fault", "expired"), ("halted", "expired"))),
    *(("QUIET", *events) for events in (("fault",), ("halted",), ("fault", "expired"), ("expired", "quiet"))),
}


async def life(ports, rng, *, cycles, timeout, least):
    """Checks random events against the rules of a run, for at least `cycles` cycles and until all cases in `least` have occurred.
    A case is (state, next state, timeout) or (state, events in one cycle)."""
    state, done, faulted, pending, fault = "IDLE", 0, 0, 0, (0, 0)
    enabled = quiet = ran = 0
    due, silent, counts, stalls, beats = False, 0, {"cycles": 0, "busy_cycles": 0}, [0] * len(STALLS), [0] * 4
    seen = set()
    calm = False
    counted = False, {"progress": False}
    while ports.cycle < cycles or not least <= seen:
        cycle = ports.cycle
        if cycle % 40 == 0:
            calm = rng.random() < 0.3  # no progress for a while
        ends = rng.random() < (0.6 if due else 0.2 if state == "QUIET" else 0.01)
        e = {
            "start": rng.random() < 0.1,
            "reset": rng.random() < 0.01,
            "acknowledge": rng.random() < 0.1,
            "enable_written": rng.random() < 0.05,
            "enable": rng.getrandbits(1),
            "writer_quiet": rng.random() < 0.9,
            "reader_quiet": rng.random() < (0.3 if state != "QUIET" or silent >= timeout else 0.05),
            "progress": not calm and rng.random() < 0.5,
            "halted": rng.random() < (0.6 if ends else 0.01),
            "fault__valid": rng.random() < (0.6 if ends else 0.005),
            "busy": rng.getrandbits(1),
            "stall": rng.getrandbits(len(STALLS)) or 1,
            "read_beat": rng.getrandbits(1),
            "write_beat": rng.getrandbits(1),
            "ring_sends": rng.getrandbits(1),
            "ring_takes": rng.getrandbits(1),
            "fault__cause": rng.randrange(1, 6),
            "fault__pc": rng.getrandbits(32),
            "present_pc": rng.getrandbits(32),
        }
        ports.set(timeout=timeout, **e)
        await ports.settle()
        active = state != "IDLE"
        assert (ports.get("active"), ports.get("running")) == (active, state == "RUN"), f"cycle {cycle}: {state}"
        assert (ports.get("done"), ports.get("faulted"), ports.get("pending")) == (done, faulted, pending), f"cycle {cycle}"
        said = ports.get("quiet"), ports.get("enabled"), ports.get("irq")
        assert said == (quiet, enabled, pending and enabled), f"cycle {cycle}"
        assert (ports.get("fault_cause"), ports.get("fault_pc")) == fault
        assert {name: ports.get(name) for name in counts} == counts and ports.get("stall_cycles") == stalls
        assert [ports.get(name) for name in ("read_beats", "write_beats", "ring_sent", "ring_received")] == beats
        assert counts["busy_cycles"] + sum(stalls) == counts["cycles"]

        # Expected values for the next cycle. Counters and progress are one cycle old.
        before, expired, due = state, due, active and silent >= timeout
        (counting, past), counted = counted, (active, e)
        if counting:
            counts["cycles"] += 1
            beats = [count + past[name] for count, name in zip(beats, ("read_beat", "write_beat", "ring_sends", "ring_takes"))]
            if past["busy"]:
                counts["busy_cycles"] += 1
            else:
                stalls[next(i for i in range(len(STALLS)) if past["stall"] >> i & 1)] += 1
        silent = 0 if past["progress"] or not active else silent + 1
        pending = 0 if e["acknowledge"] else pending
        if state == "IDLE" and e["start"] and not faulted:
            state, done = "RUN" if quiet and not ran else "QUIET", 0
            counts, stalls, beats = {"cycles": 0, "busy_cycles": 0}, [0] * len(STALLS), [0] * 4
        elif state == "RUN" and e["fault__valid"]:
            state, faulted, pending, fault = "IDLE", 1, 1, (e["fault__cause"], e["fault__pc"])
        elif active and expired:
            state, faulted, pending, fault = "IDLE", 1, 1, (Fault.TIMEOUT.value, e["present_pc"])
        elif state == "RUN" and e["halted"]:
            state, done, pending = "IDLE", 1, 1
        elif state == "QUIET" and quiet:
            state = "RUN"
        if e["reset"]:
            state, done, faulted, pending, fault = "IDLE", 0, 0, 0, (0, 0)
        was_quiet, quiet, ran = quiet, e["reader_quiet"] and e["writer_quiet"], before == "RUN"
        enabled = e["enable"] if e["enable_written"] else enabled
        seen.add((before, state, fault[0] == Fault.TIMEOUT.value))
        events = {"fault": e["fault__valid"], "halted": e["halted"], "expired": expired, "quiet": before == "QUIET" and was_quiet}
        seen.add((before, *(name for name, now in events.items() if now and not e["reset"])))
        await ports.tick()


@pytest.mark.parametrize("timeout", [*slow(1), 7, *slow(25)])
def test_random_events_follow_the_rules_of_a_run(timeout):
    simulate(
        RunControl(config=Config(ring=True)),
        life,
        seed=seed(),
        cycles=3000,
        timeout=timeout,
        least={("IDLE", "QUIET", False), ("RUN", "IDLE", True), ("QUIET", "IDLE", True), *MEET},
    )


async def silence(ports, rng, *, timeout, quiet):
    """Starts a run without any events, and returns the cycles until it ends by timeout."""
    ports.set(timeout=timeout, reader_quiet=quiet, writer_quiet=1, stall=1)
    await ports.tick()
    ports.set(start=1)
    await ports.tick()
    ports.set(start=0)
    while ports.get("active"):
        await ports.tick()
    assert ports.get("faulted") and ports.get("fault_cause") == Fault.TIMEOUT.value
    return ports.get("cycles")


@pytest.mark.parametrize("quiet", [0, 1])
@pytest.mark.parametrize("timeout", [1, 2, 100])
def test_timeout_counts_cycles_to_within_one(timeout, quiet):
    assert abs(simulate(RunControl(config=Config(ring=True)), silence, seed=seed(), timeout=timeout, quiet=quiet) - timeout) <= 1

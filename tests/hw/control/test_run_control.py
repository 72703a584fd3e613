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

#: Ports that other units than the registers drive or read, by their names in this test.
PORTS = {
    "reader_quiet": "reader__quiet",
    "writer_quiet": "writer__quiet",
    "read_beat": "reader__beat",
    "write_beat": "writer__beat",
    "busy": "array__busy",
    "stall": "array__stall",
    "ring_sends": "ring__sends",
    "ring_takes": "ring__takes",
    "read_moves": "reader__moves",
    "write_moves": "writer__moves",
    "ring_moves": "ring__moves",
    **{name: name for name in ("progress", "halted", "fault__valid", "fault__cause", "fault__pc", "present_pc")},
    **{name: name for name in ("running", "irq", "reader__flush", "writer__flush")},
    **{name: name for name in ("state__active", "state__faulted", "state__reset")},
}
#: Words of 32 bits in a vector.
WORDS = Config().n // 2


#: Events that are progress.
MOVES = ("progress", "busy", "read_moves", "write_moves", "ring_moves")


def port(name):
    """Returns the port for the name of an event or result in this test: by default a member of `registers`."""
    return PORTS.get(name, f"registers__{name}")


#: A state, with events that coincide in it: at most one of the events takes effect.
MEET = {
    *(("RUN", *pair) for pair in (("fault", "halted"), ("fault", "expired"), ("halted", "expired"))),
    *(("QUIET", *events) for events in (("fault",), ("fault", "expired"), ("expired", "quiet"))),
}


async def life(ports, rng, *, cycles, timeout, least):
    """Checks random events against the rules of a run, for at least `cycles` cycles and until all cases in `least` have occurred.
    A case is (state, next state, timeout) or (state, events in one cycle)."""
    state, done, faulted, pending, fault = "IDLE", 0, 0, 0, (0, 0)
    enabled = quiet = ran = 0
    due, silent, cycles_run, reasons, beats = False, 0, 0, [0] * (1 + len(STALLS)), [0] * 4  # reasons: busy first
    coming, index, value = [None, None], 0, 0  # coming: reasons that are counted in the next two cycles
    seen = set()
    calm = False
    counted, halts = (False, dict.fromkeys(MOVES)), False

    def get(name):
        return ports.get(port(name))

    while ports.cycle < cycles or not least <= seen:
        cycle = ports.cycle
        if cycle % 40 == 0:
            calm = rng.random() < 0.3  # no progress for a while
        ends = rng.random() < (0.6 if due or halts else 0.2 if state == "QUIET" else 0.01)
        e = {
            "start": rng.random() < 0.1,
            "reset": rng.random() < 0.01,
            "acknowledge": rng.random() < 0.1,
            "enable_written": rng.random() < 0.05,
            "enable": rng.getrandbits(1),
            "writer_quiet": rng.random() < 0.9,
            "reader_quiet": rng.random() < (0.3 if state != "QUIET" or silent >= max(timeout, 1) else 0.05),
            **{name: not calm and rng.random() < 0.12 for name in MOVES},
            "halted": rng.random() < (0.6 if ends or silent == timeout else 0.01),
            "fault__valid": rng.random() < (0.6 if ends else 0.005),
            "stall": rng.getrandbits(len(STALLS)) or 1,
            "read_beat": rng.getrandbits(1),
            "write_beat": rng.getrandbits(1),
            "ring_sends": rng.getrandbits(1),
            "ring_takes": rng.getrandbits(1),
            "fault__cause": rng.randrange(1, 6),
            "fault__pc": rng.getrandbits(32),
            "present_pc": rng.getrandbits(32),
        }
        ports.set(registers__timeout=timeout, **{port(name): value for name, value in e.items()})
        await ports.settle()
        active = state != "IDLE"
        assert (get("active"), get("running")) == (active, state == "RUN"), f"cycle {cycle}: {state}"
        assert get("reader__flush") == get("writer__flush") == (state != "RUN"), f"cycle {cycle}: {state}"
        assert (get("done"), get("faulted"), get("pending")) == (done, faulted, pending), f"cycle {cycle}"
        assert [get(f"state__{name}") for name in ("active", "faulted", "reset")] == [active, faulted, e["reset"]]
        assert (get("quiet"), get("enabled"), get("irq")) == (quiet, enabled, pending and enabled), f"cycle {cycle}"
        assert (get("fault_cause"), get("fault_pc")) == fault
        assert get("cycles") == cycles_run
        assert get("count") == value, f"cycle {cycle}: counter {index}"
        index = rng.randrange(len(reasons))
        value = reasons[index]
        ports.set(registers__counter=1 + index)  # the word address of `busy` is 0x21, modulo 16
        assert [get(name) for name in ("read_beats", "write_beats")] == beats[:2]
        assert [get(name) for name in ("ring_sent", "ring_received")] == [WORDS * count for count in beats[2:]]
        assert sum(reasons) + sum(one is not None for one in coming) == cycles_run

        # Expected values for the next cycle. HALT, events and progress are one cycle old, the reasons three.
        before, expired, due = state, due, active and silent >= max(timeout, 1)
        (counting, past), counted = counted, (active, e)
        halted, halts = halts, state == "RUN" and e["halted"]
        if coming[0] is not None:
            reasons[coming[0]] += 1
        coming = [coming[1], None]
        if counting:
            coming[1] = 0 if past["busy"] else next(1 + i for i in range(len(STALLS)) if past["stall"] >> i & 1)
        if counting:
            cycles_run += 1
            beats = [count + past[name] for count, name in zip(beats, ("read_beat", "write_beat", "ring_sends", "ring_takes"))]
        silent = 0 if any(past[name] for name in MOVES) or not active else silent + 1
        pending = 0 if e["acknowledge"] else pending
        if state == "IDLE" and e["start"] and not e["reset"] and not faulted:
            state, done = "RUN" if quiet and not ran else "QUIET", 0
            cycles_run, coming, reasons, beats = 0, [None, None], [0] * len(reasons), [0] * 4
        elif state == "RUN" and e["fault__valid"]:
            state, faulted, pending, fault = "IDLE", 1, 1, (e["fault__cause"], e["fault__pc"])
        elif active and expired:
            state, faulted, pending, fault = "IDLE", 1, 1, (Fault.TIMEOUT.value, e["present_pc"])
        elif state == "RUN" and halted:
            state, done, pending = "IDLE", 1, 1
        elif state == "QUIET" and quiet:
            state = "RUN"
        if e["reset"]:
            state, done, faulted, pending, fault = "IDLE", 0, 0, 0, (0, 0)
        was_quiet, quiet, ran = quiet, e["reader_quiet"] and e["writer_quiet"], before == "RUN"
        enabled = e["enable"] if e["enable_written"] else enabled
        seen.add((before, state, fault[0] == Fault.TIMEOUT.value))
        events = {"fault": e["fault__valid"], "halted": halted, "expired": expired, "quiet": before == "QUIET" and was_quiet}
        seen.add((before, *(name for name, now in events.items() if now and not e["reset"])))
        await ports.tick()


# promise: counters
@pytest.mark.parametrize("timeout", [0, 7, *slow(1, 25)])
def test_random_events_follow_the_rules_of_a_run(timeout):
    simulate(
        RunControl(config=Config(ring=True)),
        life,
        seed=seed(),
        cycles=3000,
        timeout=timeout,
        least={("IDLE", "QUIET", False), ("RUN", "IDLE", True), ("QUIET", "IDLE", True), *(MEET if timeout > 1 else ())},
    )


async def silence(ports, rng, *, timeout, quiet):
    """Starts a run without any events, and returns the cycles until it ends by timeout."""
    ports.set(registers__timeout=timeout, reader__quiet=quiet, writer__quiet=1, array__stall=1)
    await ports.tick()
    ports.set(registers__start=1)
    await ports.tick()
    ports.set(registers__start=0)
    while ports.get("registers__active"):
        await ports.tick()
    assert ports.get("registers__faulted") and ports.get("registers__fault_cause") == Fault.TIMEOUT.value
    return ports.get("registers__cycles")


# promise: timeout
@pytest.mark.parametrize("quiet", [0, 1])
@pytest.mark.parametrize("timeout", [1, 2, 100])
def test_timeout_counts_cycles_to_within_one(timeout, quiet):
    assert abs(simulate(RunControl(config=Config(ring=True)), silence, seed=seed(), timeout=timeout, quiet=quiet) - timeout) <= 1


async def one_reason(ports, rng):
    """Runs with one reason each. Its counter equals the cycles of the run, and the others are 0. `busy` has priority, then the
    lowest bit of the stalls."""
    count = 1 + len(STALLS)
    for number in range(count):
        stall = rng.getrandbits(len(STALLS)) | 1 if not number else (1 | 2 * rng.getrandbits(8)) << number - 1
        stall &= (1 << len(STALLS)) - 1
        ports.set(reader__quiet=1, writer__quiet=1, array__busy=not number, array__stall=stall, registers__timeout=1000)
        for start, halted in [(0, 0)] * 3 + [(1, 0)] + [(0, 0)] * 9 + [(0, 1)] + [(0, 0)] * 5:
            ports.set(registers__start=start, halted=halted)
            await ports.tick()
        found = []
        for index in range(count):
            ports.set(registers__counter=1 + index)  # the word address of `busy` is 0x21, modulo 16
            await ports.tick()
            found.append(ports.get("registers__count"))
        cycles = ports.get("registers__cycles")
        assert cycles > 5 and found == [cycles if index == number else 0 for index in range(count)]


# promise: one-reason
def test_one_reason_counts_all_cycles():
    simulate(RunControl(config=Config(ring=True)), one_reason, seed=seed())

"""Tests of the whole core on buses that respond with errors, late, or never."""

import pytest

from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import Hazards, initialisation, revelation
from core_programs import Case
from core_runs import BAD, MEMORY, SMALL, MemoryBuilder, op, run, same
from suites import slow


def transfers(kind):
    """Returns a program with one access of `kind` to region SCRATCH (or only fetches), followed by SYNC, STORE and HALT."""
    program = [op(Opcode.LOAD, region=Region.INPUT, rows=32)]
    program += {
        "fetch": [],
        "load": [op(Opcode.LOAD, region=Region.SCRATCH, rows=20)],
        "load_bias": [op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=2)],
        "load_weights": [op(Opcode.LOAD_WEIGHTS, region=Region.SCRATCH, rows=3)],
        "store": [op(Opcode.STORE, region=Region.SCRATCH, rows=30)],
    }[kind]
    return [*program, op(Opcode.SYNC), op(Opcode.STORE, region=Region.OUTPUT, rows=32), op(Opcode.HALT)]


@pytest.mark.parametrize("memory", [{"latency": 20, "pause_percent": 30}], ids=str)
def test_bus_errors(rng, memory):
    """After SLVERR or DECERR on any kind of access, the core reports the fault with its instruction, stores nothing more, and
    runs the next program."""
    host, machine, hazards = MemoryBuilder(rng), Machine(SMALL), Hazards(rng, SMALL)
    cases = [Case(rng, host, machine, initialisation(SMALL) + [op(Opcode.HALT)])]
    expected = [None]
    for kind in ("fetch", "load", "load_bias", "load_weights", "store"):
        for base in (BAD, MEMORY, MEMORY - 64 if kind != "fetch" else 1 << 30):
            case = Case(rng, host, machine, transfers(kind))
            case.run["regions"]["MODEL" if kind == "fetch" else "SCRATCH"][0] = base
            cause = "BUS_WRITE" if kind == "store" else "BUS_READ"
            edge = {"load": 32, "load_bias": 4, "load_weights": 12, "store": 30}.get(kind, 32) * 8 <= 64
            cases.append(case)
            expected.append(None if base == MEMORY - 64 and edge else [cause, 0 if kind == "fetch" else 32])
            cases.append(Case(rng, host, machine, hazards.make(12)))
            expected.append(None)
    assert host.end < BAD
    result = run(
        SMALL,
        host,
        [case.run for case in cases],
        memory={**memory, "error_address": f"{BAD:x}", "error_last": f"{BAD + 0x1FF:x}"},
    )
    assert [one["fault"] for one in result["runs"]] == expected
    memory = bytearray(host.bytes)
    for case, fault in zip(cases, expected):
        if fault is None and case.run["regions"]["SCRATCH"][0] < BAD:
            case.write(memory)
        elif fault is None:
            base, size = case.run["regions"]["OUTPUT"]
            memory[base : base + size] = case.after["OUTPUT"]
    memory[-64:] = result["memory"][-64:]  # bytes that the store wrote before it ended
    same(memory, result["memory"])


@pytest.mark.parametrize("after", [*slow(0, 1, 2), 4])  # transaction 0 fetches instructions, 1 and 2 read, 3 and 4 write
def test_bus_that_answers_late(rng, after):
    """If the responses to transaction `after` and to all later ones are late, the run ends with TIMEOUT within twice the
    register's value. The next run leaves the machine model's memory."""
    host, machine = MemoryBuilder(rng), Machine(SMALL)
    bad = Case(
        rng,
        host,
        machine,
        [op(Opcode.LOAD, region=Region.INPUT, rows=32), op(Opcode.STORE, region=Region.OUTPUT, rows=32), op(Opcode.HALT)],
        timeout=400,
    )
    good = Case(rng, host, machine, initialisation(SMALL) + revelation(SMALL), timeout=30_000)
    result = run(SMALL, host, [bad.run, good.run], memory={"latency": 2, "hang_after": after, "hang_cycles": 3000})
    late, fine = result["runs"]
    assert fine["fault"] is None
    assert fine["counters"]["cycles"] > 3000
    assert late["fault"][0] == "TIMEOUT"
    assert 400 < late["counters"]["cycles"] < 400 + 400
    base, size = bad.run["regions"]["OUTPUT"]
    partial = result["memory"][base : base + size]
    assert all(found in pair for found, *pair in zip(partial, host.bytes[base : base + size], bad.after["OUTPUT"]))
    good.write(host.bytes)
    host.bytes[base : base + size] = partial
    same(host.bytes, result["memory"])


# promise: start-when-quiet
@pytest.mark.parametrize("after, fault", [*slow((0, ["TIMEOUT", 0])), (2, None)], ids=["fetch", "load"])
def test_bus_that_never_answers(rng, after, fault):
    """If the bus never responds, the run and the next run end with TIMEOUT. The second run ends while it waits for the bus to
    become idle."""
    host, machine = MemoryBuilder(rng), Machine(SMALL)
    case = Case(rng, host, machine, transfers("load"), timeout=200)
    result = run(SMALL, host, [case.run, case.run], memory={"hang_after": after})
    for one in result["runs"]:
        assert one["fault"][0] == "TIMEOUT" and (fault is None or one["fault"] == fault)
        assert 200 < one["counters"]["cycles"] < 500
        assert not one["quiet"]
    assert result["runs"][1]["counters"]["cycles"] < 210
    same(host.bytes, result["memory"])

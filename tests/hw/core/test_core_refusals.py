"""Tests of the whole core, covering refused programs, and the memory contents and state that they leave."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import Hazards, initialisation
from core_programs import Case, least_fields
from core_runs import FULL, SMALL, TINY, MemoryBuilder, op, run, same
from suites import slow

GOOD = {opcode: least_fields(opcode, rows=2, lanes=3) for opcode in Opcode} | {
    Opcode.LOAD_WEIGHTS: least_fields(Opcode.LOAD_WEIGHTS),
    Opcode.LOAD_TABLE: dict(rows=2, first=120),
}


def random_word(rng):
    """Returns a 256-bit word of random bits, or a valid instruction with one or two flipped bits."""
    if rng.random() < 0.15:
        return int.from_bytes(rng.bytes(32), "little")
    opcode = list(GOOD)[rng.integers(len(GOOD))]
    word = encode(opcode, **GOOD[opcode])
    for _ in range(rng.integers(1, 3)):
        word ^= 1 << int(
            rng.integers(0, 8) if rng.random() < 0.1 else rng.integers(8, 256) if rng.random() < 0.5 else rng.integers(8, 64)
        )
    return word


def is_short(word):
    try:
        opcode, fields = decode(word)
    except ValueError:
        return True
    counts = [fields[name] for name in ("rows0", "rows1", "tiles", "tiles0", "tiles1", "window0", "window1") if name in fields]
    return np.prod(counts, dtype=float) < 3000


def check_refused(rng, config, words, *, memory=None):
    """Runs each bad word after three valid instructions, with valid programs in between. Checks that cause and pc of the fault
    match the model. If a SYNC precedes the bad word, the memory must match too. Without a SYNC, earlier instructions may be
    unfinished."""
    host, machine, hazards = MemoryBuilder(rng), Machine(config), Hazards(rng, config)
    cases = [Case(rng, host, machine, hazards.make(20))]
    exact = [True]
    for number, word in enumerate(words):
        before = [
            op(Opcode.LOAD, region=Region.INPUT, offset=64, rows=3, buffer=4),
            op(Opcode.STORE, region=Region.OUTPUT, rows=9),
            op(Opcode.STORE, region=Region.SCRATCH, rows=2, offset=64),
        ]
        exact.append(bool(rng.random() < 0.7))
        case = Case(rng, host, machine, [*before, *([op(Opcode.SYNC)] if exact[-1] else []), word, op(Opcode.HALT)], timeout=600)
        cases.append(case)
        if number % 30 == 29:
            cases.append(Case(rng, host, machine, hazards.make(20)))
            exact.append(True)
    result = run(config, host, [case.run for case in cases], memory=memory)
    allowed = bytearray(host.bytes)
    for number, (case, one, is_exact) in enumerate(zip(cases, result["runs"], exact)):
        assert one["fault"] == case.fault, f"program {number}: {one['fault']}, not {case.fault}: {case.program[-2:]}"
        if not is_exact and case.fault:
            for name in ("OUTPUT", "SCRATCH"):
                base, size = case.run["regions"][name]
                found = result["memory"][base : base + size]
                places = zip(found, host.bytes[base : base + size], case.after[name])
                assert all(byte in pair for byte, *pair in places), f"program {number}: stray bytes in {name}"
                case.after[name] = found
        case.write(allowed)
    same(allowed, result["memory"])
    return cases


# promise: checked-first, fault-ends
@pytest.mark.parametrize("config", [SMALL, *slow(FULL)], ids=["small", "full"])
def test_random_words(rng, config):
    words = [word for word in (random_word(rng) for _ in range(100)) if is_short(word)]
    check_refused(rng, config, words, memory={"latency": 5, "pause_percent": 20})


@pytest.mark.parametrize("bus_width", [None, *slow(32)])
def test_fetch_does_not_leave_region_model(rng, bus_width):
    """Fetches fault exactly where the model faults. The test covers sizes of MODEL at and next to the end of an instruction, and
    starts beyond the end of MODEL or within a beat."""
    config = Config(**{**TINY, "bus_width": bus_width})
    host, machine = MemoryBuilder(rng), Machine(config)
    syncs = [op(Opcode.SYNC)] * 11
    cases = [Case(rng, host, machine, initialisation(config) + [op(Opcode.HALT)])]
    cases += [
        Case(rng, host, machine, syncs + [op(Opcode.HALT)], model_bytes=size)
        for size in (0, 4, 31, 32, 33, 63, 64, 128, 200, 352, 383, 384)
    ]
    cases += [
        Case(rng, host, machine, syncs + [op(Opcode.HALT)], pc=pc)
        for pc in (32, 64, 352, 384, 384 + 32, 0xFFFFFFE0, 1 << 31, 1, 2, 33)
    ]
    result = run(config, host, [case.run for case in cases])
    for case, one in zip(cases, result["runs"]):
        assert one["fault"] == case.fault, f"pc {case.pc}, MODEL of {case.run['regions']['MODEL'][1]} bytes"
    same(host.bytes, result["memory"])


# promise: misaligned
def test_end_of_the_address_space(rng):
    """A region may end at the last bus address: accesses inside it reach the bus, which has no memory there. A region that
    extends further counts as empty."""
    host, machine, end = MemoryBuilder(rng), Machine(SMALL), 1 << SMALL.address_width
    load = [op(Opcode.LOAD, region=Region.SCRATCH, rows=2, offset=64), op(Opcode.HALT)]
    runs, expected = [], []
    for region, size in (("SCRATCH", 80), ("MODEL", 64)):
        for base, room in (
            (end - size, "BUS_READ"),
            (end - size + 8, "ADDRESS"),
            (end - 8, "ADDRESS"),
            (end, "ADDRESS"),
            (end << 1, "ADDRESS"),
        ):
            case = Case(rng, host, machine, load)
            case.run["regions"][region] = [base, size]
            runs.append(case.run)
            expected.append([room, 0])
    result = run(SMALL, host, runs)
    assert [one["fault"] for one in result["runs"]] == expected
    same(host.bytes, result["memory"])


# promise: invalid-ends
def test_matmul_without_a_tile(rng):
    host, machine = MemoryBuilder(rng), Machine(SMALL)
    missing = Case(
        rng,
        host,
        machine,
        initialisation(SMALL) + [op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=1), op(Opcode.HALT)],
        timeout=300,
    )
    good = Case(rng, host, machine, Hazards(rng, SMALL).make(20))
    assert missing.fault[0] == "TIMEOUT"
    result = run(SMALL, host, [missing.run, good.run])
    assert [one["fault"] for one in result["runs"]] == [missing.fault, None]
    assert 300 < result["runs"][0]["counters"]["cycles"] < 300 + 500
    good.write(host.bytes)
    same(host.bytes, result["memory"])


# promise: writes-after-fault
@pytest.mark.parametrize("memory", [{"latency": 2, "write_latency": 300, "pause_percent": 30}], ids=str)
def test_memory_may_be_reused_after_a_fault(rng, memory):
    """After a fault, outstanding stores may still reach memory. After the driver has waited for the bus to become idle, no store
    reaches memory."""
    host, machine = MemoryBuilder(rng), Machine(SMALL)
    cases, beat = [], SMALL.bus_bytes
    for polls in (0, 1000):
        stores = [op(Opcode.STORE, region=Region.OUTPUT, offset=64 * i, rows=8) for i in range(16)]
        case = Case(rng, host, machine, [*initialisation(SMALL), *stores, 0x7F])
        base, size = case.run["regions"]["OUTPUT"]
        case.run |= {"polls": polls, "reuse": [base // beat, (base + size) // beat - 1]}
        cases.append(case)
    after = run(SMALL, host, [case.run for case in cases], memory=memory)
    clean = []
    for case, one in zip(cases, after["runs"]):
        base, size = case.run["regions"]["OUTPUT"]
        assert one["fault"] == case.fault and case.fault[0] == "ILLEGAL"
        clean.append(not any(after["memory"][base : base + size]))
    assert clean == [False, True]


@pytest.mark.parametrize("memory", [*slow({"latency": 3}), {"latency": 30, "pause_percent": 60}], ids=str)
def test_reset_ends_a_run(rng, memory):
    """A reset at a random cycle ends the run and writes nothing afterwards, and the next program leaves the machine model's
    memory."""
    host, machine, hazards = MemoryBuilder(rng), Machine(SMALL), Hazards(rng, SMALL)
    first = Case(rng, host, machine, initialisation(SMALL) + [op(Opcode.HALT)])
    stores = [
        *initialisation(SMALL),
        *(op(Opcode.STORE, region=Region.OUTPUT, offset=256 * i, rows=32) for i in range(8)),
        op(Opcode.HALT),
    ]
    cases = [first]
    for number in range(16):
        case = Case(rng, host, machine, hazards.make(30) if number % 2 else stores)
        case.run |= {"abort": int(rng.integers(1, 1500)), "until_quiet": int(rng.choice([0, 100_000]))}
        cases.append(case)
        if number % 4 == 3:
            cases.append(Case(rng, host, machine, hazards.make(20)))
    result = run(SMALL, host, [case.run for case in cases], memory=memory)
    for case, one in zip(cases, result["runs"]):
        assert one["fault"] is None
        if "abort" in case.run:
            assert one["quiet"] or not case.run["until_quiet"]
        if "abort" in case.run and not one["state"]["done"]:
            written = {}
            for name in ("OUTPUT", "SCRATCH"):
                base, size = case.run["regions"][name]
                written[name] = result["memory"][base : base + size]
            if case.program is stores:
                base, size = case.run["regions"]["OUTPUT"]
                places = zip(written["OUTPUT"], host.bytes[base : base + size], case.after["OUTPUT"])
                assert all(found in pair for found, *pair in places), "stray bytes in OUTPUT"
            case.after.update(written)
        case.write(host.bytes)
    same(host.bytes, result["memory"])

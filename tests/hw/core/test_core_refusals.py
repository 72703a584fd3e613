"""Tests of the whole core, covering refused programs, and the memory contents and state that they leave."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, TABLE_WORDS, Format, FunctionCode, Half, Opcode, Region, records
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import Hazards, initialisation
from core_programs import Case, least_fields
from core_runs import FULL, SMALL, TINY, MemoryBuilder, op, run, same
from suites import slow

GOOD = {opcode: least_fields(opcode, rows=2, lanes=3) for opcode in Opcode} | {
    Opcode.LOAD_WEIGHTS: least_fields(Opcode.LOAD_WEIGHTS),
    Opcode.LOAD_TABLE: dict(rows=2, first=120),
}


def edges(config):
    """Yields `(opcode, fields)` of instructions just inside and just outside each limit of a field."""
    n, bus = config.n, config.bus_bytes
    size, depths = (
        Case.sizes["SCRATCH"],
        {
            "buffer": config.unified_buffer_depth,
            "acc": config.accumulator_depth,
            "bias": config.bias_depth,
            "operand": config.unified_buffer_depth,
        },
    )
    for opcode, good in GOOD.items():
        fields = INSTRUCTIONS[opcode].widths
        yield opcode, good
        if "function" in fields:
            yield from ((opcode, {**good, "function": function}) for function in (2, 3, 15))
        for name in ("rows", "rows0", "rows1", "tiles", "tiles0", "tiles1", "window0", "window1"):
            if name in fields:
                yield opcode, {**good, name: 0}
        for name in depths:
            if name in fields:
                rows = 2 if opcode is Opcode.MATMUL and name == "acc" else 1 if opcode is Opcode.MATMUL else good.get("rows", 2)
                extra = dict(start=1) if name == "bias" and opcode is Opcode.MATMUL else {}
                last = depths[name] - (1 if opcode is Opcode.MATMUL and name == "bias" else rows)
                if opcode is Opcode.MATMUL and name == "buffer":
                    last = depths[name] - 2
                for place in (last, last + 1, 0xFFFF):
                    yield opcode, {**good, **extra, name: place}
        if "offset" in fields:
            row = {Opcode.LOAD_BIAS: 4 * n, Opcode.LOAD_WEIGHTS: 2 * n * n}.get(opcode, 2 * n)
            last = size - good["rows"] * row
            for offset in (last, last + bus, last - bus + 1, 1, bus // 2, 0xFFFFFFFF & -bus):
                yield opcode, {**good, "offset": offset}
            yield opcode, {**good, "rows": 0xFFFF}
            for region in Region:
                yield opcode, {**good, "region": region}
    for opcode in (Opcode.ACTIVATE, Opcode.POOL, Opcode.SOFTMAX, Opcode.MULTIPLY):
        for lanes in (0, n, n + 1, 255):
            yield opcode, {**GOOD[opcode], "lanes": lanes}
    for opcode in (Opcode.ACTIVATE, Opcode.POOL, Opcode.SOFTMAX):
        for buffer in (depths["buffer"] - 4, depths["buffer"] - 3):
            yield opcode, {**GOOD[opcode], "format": Format.BINARY32, "buffer": buffer}
    pool, last = GOOD[Opcode.POOL], depths["acc"] - 2
    for count in ("rows1", "window0", "window1"):
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.POOL, {**pool, count: 2, count + "_stride": stride}
    for stride in (last + 1, last + 2, 0xFFFF):
        yield Opcode.POOL, {**pool, "rows0_stride": stride}
    for format_, last in ((Format.BFLOAT16, depths["buffer"] - 2), (Format.BINARY32, depths["buffer"] - 4)):
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.POOL, {**pool, "format": format_, "rows1": 2, "buffer_stride": stride}
    yield (
        Opcode.POOL,
        {**pool, **dict.fromkeys([name for name, width in INSTRUCTIONS[Opcode.POOL].widths.items() if width == 16], 0xFFFF)},
    )
    softmax = {**GOOD[Opcode.SOFTMAX], "tiles": 3}
    for stride, last in (("acc_stride", depths["acc"] // 2 - 1), ("buffer_stride", depths["buffer"] // 2 - 1)):
        for value in (last, last + 1, 0xFFFF):
            yield Opcode.SOFTMAX, {**softmax, stride: value}
    for value in (depths["buffer"] // 2 - 2, depths["buffer"] // 2 - 1):
        yield Opcode.SOFTMAX, {**softmax, "format": Format.BINARY32, "buffer_stride": value}
    yield Opcode.SOFTMAX, {**softmax, **dict.fromkeys(("tiles", "acc_stride", "buffer_stride"), 0xFFFF)}
    for word in (1, n - 1, n, TABLE_WORDS - 2 * n, TABLE_WORDS - n, TABLE_WORDS, 1 << 15):
        yield Opcode.LOAD_TABLE, {**GOOD[Opcode.LOAD_TABLE], "word": word}
    matmul = GOOD[Opcode.MATMUL]
    for count in ("rows0", "rows1", "tiles0", "tiles1"):
        last = depths["buffer"] - 1 - (1 if count != "rows0" else 0)
        for stride in (last, last + 1, 0xFFFF):
            yield Opcode.MATMUL, {**matmul, count: 2, count + "_stride": stride}
        if count.startswith("tiles"):
            for stride in (depths["acc"] - 2, depths["acc"] - 1, 0xFFFF):
                yield Opcode.MATMUL, {**matmul, count: 2, count + "_acc_stride": stride}
    for rows1 in (depths["acc"] // 2, depths["acc"] // 2 + 1, 0xFFFF):
        yield Opcode.MATMUL, {**matmul, "rows1": rows1}
    for tiles0 in (depths["bias"], depths["bias"] + 1):
        yield Opcode.MATMUL, {**matmul, "start": 1, "tiles0": tiles0}
    yield (
        Opcode.MATMUL,
        {**matmul, **dict.fromkeys([name for name, width in INSTRUCTIONS[Opcode.MATMUL].widths.items() if width == 16], 0xFFFF)},
    )


def training_edges(config):
    """Yields instructions at the limits of fields that need `training` or `attention`. A core without these refuses each."""
    n, depths = config.n, {"buffer": config.unified_buffer_depth, "acc": config.accumulator_depth, "bias": config.bias_depth}
    yield Opcode.LOAD_WEIGHTS, {**GOOD[Opcode.LOAD_WEIGHTS], "transpose": 1}
    bias = GOOD[Opcode.LOAD_BIAS]
    yield from ((Opcode.LOAD_BIAS, {**bias, "half": half}) for half in range(4))
    last = Case.sizes["SCRATCH"] - bias["rows"] * 2 * n
    for offset in (last, last + config.bus_bytes):
        yield Opcode.LOAD_BIAS, {**bias, "half": Half.UPPER, "offset": offset}
    matmul = {**GOOD[Opcode.MATMUL], "bias_rows": 1, "rows1": 2, "tiles0": 2}
    for start in (0, 1):
        last = max(0, depths["bias"] - matmul["rows0"] * 2 - 1)
        yield from ((Opcode.MATMUL, {**matmul, "start": start, "bias": place}) for place in (last, last + 1, 0xFFFF))
    yield Opcode.MATMUL, {**matmul, "start": 0, "rows1": depths["bias"], "rows0": 1, "tiles0": 1}
    for opcode, format_ in ((Opcode.ACTIVATE, Format.PLANES), (Opcode.POOL, Format.INDEX)):
        good = {**GOOD[opcode], "format": format_}
        rows = 2 * format_.height
        yield from ((opcode, {**good, "function": function}) for function in FunctionCode)
        yield from ((opcode, {**good, "buffer": place}) for place in (depths["buffer"] - rows, depths["buffer"] - rows + 1))
        yield opcode, {**good, "format": 5 - format_.value}
    for format_ in (Format.PLANES, Format.INDEX):
        yield Opcode.SOFTMAX, {**GOOD[Opcode.SOFTMAX], "format": format_}
    for opcode, format_ in ((Opcode.SELECT, None), (Opcode.POOL, Format.BFLOAT16), (Opcode.POOL, Format.BINARY32)):
        good = {**GOOD[opcode], **({"format": format_} if format_ else {}), "rows0": 3, "rows0_stride": 0}
        last = (depths["buffer"] - (format_.height if format_ else 1)) // 2
        yield from ((opcode, {**good, "buffer_step": step}) for step in (1, 2, last, last + 1, 0xFFFF))
        yield opcode, {**good, "rows0": 1, "buffer_step": 0xFFFF}
    select, last = GOOD[Opcode.SELECT], depths["buffer"] - 2
    for stride in ("operand_stride", "buffer_stride"):
        yield from ((Opcode.SELECT, {**select, "rows1": 2, stride: place}) for place in (last, last + 1, 0xFFFF))
    for name, last in (("rows1_stride", depths["acc"] - 2), ("rows0_stride", depths["acc"] - 1)):
        yield from ((Opcode.SELECT, {**select, "rows1": 2, name: place}) for place in (last, last + 1, 0xFFFF))
    yield Opcode.SELECT, {**select, **dict.fromkeys(list(select) + ["operand_stride", "buffer_stride", "buffer_step"], 0xFFFF)}


def transposing_edges(config):
    n = config.n
    load = {**GOOD[Opcode.LOAD], "transpose": 1}
    yield from ((Opcode.LOAD, {**load, "rows": rows}) for rows in (1, n - 1, n, n + 1, 2 * n, 0))
    last = config.unified_buffer_depth - n
    yield from ((Opcode.LOAD, {**load, "rows": n, "buffer": place}) for place in (last, last + 1))


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


def reserved_bits(config, opcode):
    """Returns the indices of the reserved bits of `opcode`, which must be 0."""
    record = records(config).get(opcode, INSTRUCTIONS[opcode])
    return [bit for bit in range(256) if record.reserved >> bit & 1]


# promise: fault-ends
@pytest.mark.parametrize("config", slow(SMALL, FULL), ids=["small", "full"])
def test_every_edge(rng, config):
    words = [encode(opcode, **fields) for opcode, fields in [*edges(config), *training_edges(config), *transposing_edges(config)]]
    for opcode in GOOD:
        reserved = reserved_bits(config, opcode)
        words += [encode(opcode, **GOOD[opcode]) | 1 << int(bit) for bit in {reserved[0], reserved[-1], rng.choice(reserved)}]
    causes = {str(case.fault and case.fault[0]) for case in check_refused(rng, config, words)}
    assert {"None", "ILLEGAL", "LENGTH", "ADDRESS"} <= causes


# promise: checked-first
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

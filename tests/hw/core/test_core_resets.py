"""Tests of resetting only the core, while the memory keeps running and answers earlier requests."""

import itertools

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import Hazards
from core_programs import Case, least_fields
from core_runs import NARROW, SMALL, TINY, MemoryBuilder, op, run


def without_stores(program):
    return [word for word in program if word[0] is not Opcode.STORE]


def loads(rows):
    return [*[op(Opcode.LOAD, region=Region.INPUT, rows=rows)] * 40, op(Opcode.HALT)]


def cuts(rng, config, hazards, latency):
    """Yields an endless sequence of programs and the cycles of their resets. A reset occurs with write responses outstanding,
    during the first instruction, within about 24 instructions, or for one cycle while loads wait for the bus."""
    while True:
        any_length = int(rng.choice([1, 2, 20]))
        yield (
            [op(Opcode.LOAD, region=Region.INPUT, rows=4), op(Opcode.STORE, region=Region.OUTPUT, rows=4), *loads(rows=1)],
            dict(cut=5, cut_answers=True, cut_cycles=any_length),
        )
        for most in (latency, 3 * latency):
            yield without_stores(hazards.make(32)), dict(cut=int(rng.integers(5, most)), cut_cycles=any_length)
        yield loads(config.unified_buffer_depth), dict(cut=3 * latency + int(rng.integers(0, 200)), cut_cycles=1)


def check_resets(rng, config, count, memory):
    """Resets the core during each of `count` programs while reads are outstanding. The program after each reset must leave the
    model's memory."""
    host, machine, hazards = MemoryBuilder(rng), Machine(config), Hazards(rng, config)
    runs, cases = [], []
    for program, moment in itertools.islice(cuts(rng, config, hazards, memory["latency"]), count):
        cut, case = Case(rng, host, machine, program), Case(rng, host, machine, hazards.make(24))
        runs += [{**cut.run, "cut_answers": False, **moment}, case.run]
        cases.append(case)
    result = run(config, host, runs, simulator="icarus", memory=memory)  # the bench inspects the memory
    assert [one["fault"] for one in result["runs"][1::2]] == [None] * count
    owed = [one["owed"] for one in result["runs"][::2]]
    assert all(count for number, count in enumerate(owed) if number % 4 != 2), "a run was not cut off"  # 2 may end before
    for case in cases:
        for name, (base, size) in case.run["regions"].items():
            assert (
                np.frombuffer(result["memory"][base : base + size], np.uint8) == np.frombuffer(case.after[name], np.uint8)
            ).all(), f"{name} differs"


# promise: old-responses
@pytest.mark.slow
def test_resets(rng):
    check_resets(rng, Config(**TINY | NARROW), 3, {"latency": 200})


# promise: one-edge
@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 30}, {"latency": 200, "pause_percent": 20}, {"latency": 600}], ids=str)
def test_many_resets(rng, memory):
    check_resets(rng, SMALL, 34, memory)


@pytest.mark.slow
@pytest.mark.parametrize("last", [130])
def test_reset_at_each_cycle(rng, last):
    """A reset by `control.reset` in each cycle of a short program, while it loads, computes, stores and ends. The program after
    each reset must leave the model's memory."""
    host, machine, hazards = MemoryBuilder(rng), Machine(SMALL), Hazards(rng, SMALL)
    opcodes = (Opcode.LOAD, Opcode.LOAD_BIAS, Opcode.LOAD_WEIGHTS, Opcode.MATMUL, Opcode.ACTIVATE, Opcode.STORE)
    words = [*(op(opcode, **least_fields(opcode)) for opcode in opcodes), op(Opcode.HALT)]
    runs, cases = [], []
    for cycle in range(1, last + 1):
        cut = Case(rng, host, Machine(SMALL), words).run
        cases.append(Case(rng, host, machine, hazards.make(6)))
        runs += [cut | {"abort": cycle, "until_quiet": 10_000}, cases[-1].run]
    result = run(SMALL, host, runs, simulator="icarus", memory={"latency": 3})
    ends = [one["state"]["running"] for one in result["runs"][::2]]
    assert 20 < ends.count(1) < last, "the program is too short"
    assert [one["fault"] for one in result["runs"][1::2]] == [None] * last
    for case in cases:
        for name, (base, size) in case.run["regions"].items():
            assert result["memory"][base : base + size] == case.after[name], f"{name} differs"

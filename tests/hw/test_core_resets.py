"""The whole core: resets of the core alone, while the memory goes on and still answers what was asked before."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from core_programs import Case, Hazards
from core_runs import NARROW, SMALL, TINY, Host, op, run


def without_stores(program):
    return [word for word in program if word[0] is not Opcode.STORE]


def check_resets(rng, config, count, memory):
    """`count` programs are cut off while reads are owed, every third of them while answers to writes are, too; after each,
    another program runs as if nothing had been.

    The reset comes while the memory still owes the first instruction, or, every third time, at any time until it has given some
    24 of them, when it mostly owes others.
    """
    host, machine, hazards = Host(rng), Machine(config), Hazards(rng, config)
    runs, cases = [], []
    for number in range(count):
        program = (
            without_stores(hazards.make(32))
            if number % 3
            else [
                op(Opcode.LOAD, region=Region.INPUT, rows=4),
                op(Opcode.STORE, region=Region.OUTPUT, rows=4),
                *[op(Opcode.LOAD, region=Region.INPUT, rows=1)] * 40,
                op(Opcode.HALT),
            ]
        )
        cut, case = Case(rng, host, machine, program), Case(rng, host, machine, hazards.make(24))
        runs += [
            {
                **cut.run,
                "cut": 5 if number % 3 == 0 else int(rng.integers(5, memory["latency"] * (3 if number % 3 == 1 else 1))),
                "cut_answers": not number % 3,
                "cut_cycles": int(rng.choice([1, 2, 20])),
            },
            case.run,
        ]
        cases.append(case)
    result = run(config, host, runs, simulator="icarus", memory=memory)  # the bench looks into the memory
    cut = [one["owed"] for one in result["runs"][::2]]
    assert all(cut[0::3]) and all(cut[2::3]), "a run was not cut off"
    assert [one["fault"] for one in result["runs"][1::2]] == [None] * count
    for case in cases:
        for name, (base, size) in case.run["regions"].items():
            assert (
                np.frombuffer(result["memory"][base : base + size], np.uint8) == np.frombuffer(case.after[name], np.uint8)
            ).all(), f"{name} differs"


def test_resets(rng):
    check_resets(rng, Config(**TINY | NARROW), 3, {"latency": 200})


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 30}, {"latency": 200, "pause_percent": 20}, {"latency": 600}], ids=str)
def test_many_resets(rng, memory):
    check_resets(rng, SMALL, 34, memory)

"""The whole core: resets of the core alone, while the memory goes on and still answers what was asked before."""

import numpy as np
import pytest
from core_programs import Case, Hazards
from core_runs import Host, SMALL, TINY, rng, run  # noqa: F401

from hw.config import Config
from sim.machine import Machine


def check_resets(rng, config, count, memory):
    """`count` random programs are cut off while reads are owed; after each, another program runs as if nothing had been."""
    host, machine, hazards = Host(rng, 1 << 20), Machine(config), Hazards(rng, config)
    runs, cases = [], []
    for _ in range(count):
        cut, case = (Case(rng, host, machine, hazards.make(24)) for _ in range(2))
        # The whole program takes longer than the latest of these cycles: its instructions alone are read in more.
        runs += [{**cut.run, "cut": int(rng.integers(5, 600)), "cut_cycles": int(rng.choice([1, 2, 20]))}, case.run]
        cases.append(case)
    result = run(config, host, runs, memory=memory)
    assert all(one["owed"] for one in result["runs"][::2]), "a run was not cut off"
    assert [one["fault"] for one in result["runs"][1::2]] == [None] * count
    for case in cases:
        for name, (base, size) in case.run["regions"].items():
            assert (np.frombuffer(result["memory"][base:base + size], np.uint8)
                    == np.frombuffer(case.after[name], np.uint8)).all(), f"{name} differs"


def test_resets(rng):
    check_resets(rng, Config(**{**TINY, "n": 2, "bus_width": 32}), 5, {"latency": 200})


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 30}, {"latency": 200, "pause_percent": 20}, {"latency": 600}], ids=str)
def test_many_resets(rng, memory):
    check_resets(rng, SMALL, 34, memory)

"""Tests that a start in the cycle after HALT runs the program again, wherever region MODEL ends."""

import numpy as np
import pytest

from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import Hazards
from core_programs import Case
from core_runs import SMALL, MemoryBuilder, op, run
from suites import slow


class Again(Case):
    """A test case whose program runs several times; each run continues from the state after the last run."""

    def repeat(self, machine, times):
        for _ in range(times - 1):
            machine.run(self.pc)
        self.after = {name: bytes(machine.regions[Region[name]]) for name in self.after}


def check_restarts(rng, count):
    host, machine, programs = MemoryBuilder(rng), Machine(SMALL), Hazards(rng, SMALL)
    drawn = [programs.make(18 + int(rng.integers(8))) for _ in range(count)]
    spare = [[op(Opcode.SYNC)] * int(rng.integers(6)) for _ in drawn]
    # The model runs each program as often as the core did, which is known only afterwards.
    first = [Again(rng, host, Machine(SMALL), [*words, *more]) for words, more in zip(drawn, spare)]
    result = run(SMALL, host, [case.run for case in first], memory={"latency": 1}, bench="bench_restart")
    assert [one["fault"] for one in result["runs"]] == [None] * count
    for number, (case, one) in enumerate(zip(first, result["runs"])):
        regions = case.run["regions"]
        machine.regions = {Region[name]: bytearray(host.bytes[base : base + size]) for name, (base, size) in regions.items()}
        machine.run()
        case.repeat(machine, one["times"])
        for name, (base, size) in regions.items():
            found = np.frombuffer(result["memory"][base : base + size], np.uint8)
            wrong = np.flatnonzero(found != np.frombuffer(case.after[name], np.uint8))
            assert not len(wrong), f"program {number}: {len(wrong)} bytes of {name} differ, from {wrong[0]:#x} on"


# promise: kept-contents
@pytest.mark.parametrize("simulations, count", [(1, 15), *slow((4, 250))])
def test_start_in_the_cycle_after_halt(rng, simulations, count):
    """Random programs that restart in the cycle after HALT leave the model's memory. Lengths cover all remainders of the fetch
    unit's group of four, and MODEL ends at or after HALT."""
    for _ in range(simulations):
        check_restarts(rng, count)

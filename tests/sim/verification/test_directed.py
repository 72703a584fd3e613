"""Tests of the directed jobs."""

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.spec.isa import Opcode, records
from amaranth_tpu.sim.verification.directed import Directed, directed_jobs, long_loops
from amaranth_tpu.sim.verification.jobs import Session
from amaranth_tpu.sim.verification.programs import LOOP_BITS, Hazards

CORES = {
    "default": (from_preset("default", n=2, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16), 1),
    "ring of 2": (from_preset("training", n=2, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16, ring=True), 2),
    "transformer": (from_preset("transformer", n=2, unified_buffer_depth=1024, accumulator_depth=512, bias_depth=16), 1),
}


@pytest.mark.parametrize("core", CORES)
def test_steered_jobs_plan_each_event(seed, core):
    """After the directed jobs and some random ones, only events that the results decide are missed, and a few others."""
    config, cores = CORES[core]
    session = Session(seed, config, cores, directed=directed_jobs(config, cores))
    while session.directed or len(session.trials) < 130:
        session.draw()
    assert len([event for event in session.missed if event[1] != "fault" and event[0] != "stalled"]) <= 8
    refused = [trial for trial in session.trials if trial.kind == "refused"]
    causes = {fault[0] for trial in refused for fault in trial.faults if fault}
    assert causes >= {"ILLEGAL", "ADDRESS", "LENGTH"}


def test_a_missed_fault_is_drawn_next(seed):
    """The word of a refused job has the cause and the predecessor of the only missed event."""
    config, _ = CORES["default"]
    wanted = ("LENGTH", "after", "STORE")
    session = Session(seed, config, missed={wanted}, directed=[Directed("refused")])
    session.draw()
    (trial,) = session.trials
    ((cause, pc),) = {fault for fault in trial.faults if fault[0] != "TIMEOUT"}
    assert cause == "LENGTH" and wanted not in session.missed
    before, word = trial.program[(pc - trial.first_pc) // 32 - 1 :][:2]
    assert before[0] is Opcode.STORE and isinstance(word, int)


def test_longest_loops_are_valid(rng):
    """Each instruction has its longest loops, as far as the memories allow, and fits them."""
    config, _ = CORES["transformer"]
    program = long_loops(Hazards(rng, config))
    assert {opcode for opcode, _ in program} == {
        opcode for opcode, record in records(config).items() if record.unit.name == "ACTIVATE"
    } - {Opcode.LOAD_TABLE}
    longest = max(fields["window0"] for opcode, fields in program if opcode is Opcode.POOL)
    assert longest == 255 and max(fields.get("rows1", 0) for _, fields in program) == (1 << LOOP_BITS) - 1

"""Tests of the directed jobs."""

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.spec.isa import Opcode, records
from amaranth_tpu.sim.verification.directed import Directed, directed_jobs, long_loops
from amaranth_tpu.sim.verification.jobs import KINDS, Session
from amaranth_tpu.sim.verification.programs import LOOP_BITS, Hazards

SMALL = from_preset("transformer", n=2, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16, transpose=True, ring=True)


@pytest.mark.parametrize("cores", [1, 2])
def test_jobs_reach_the_events_of_programs(seed, cores):
    """After the directed jobs and some random ones, only few events are missed that the results do not decide. Each clean job
    has expected results. Regions do not overlap."""
    session = Session(seed, SMALL, cores, directed=directed_jobs(SMALL, cores))
    while session.directed or len(session.trials) < 110:
        session.draw()
    assert len([event for event in session.missed if event[1] != "fault" and event[0] != "stalled"]) <= 12
    trials = session.trials
    assert {trial.kind for trial in trials} >= {"clean", "refused"} and {trial.kind for trial in trials} <= KINDS.keys()
    used = {word[0] for trial in trials for word in trial.program if not isinstance(word, int)}
    assert used >= records(SMALL).keys() - {Opcode.SYNC}
    causes = {fault[0] for trial in trials if trial.kind == "refused" for fault in trial.faults if fault}
    assert causes >= {"ILLEGAL", "ADDRESS", "LENGTH"}
    for trial in trials:
        assert (trial.after is not None) == (trial.kind == "clean") and len(trial.job.cores) == cores
        for core in trial.job.cores:
            places = sorted((address, address + len(data)) for address, data, _ in core.segments)
            assert all(one[1] <= two[0] for one, two in zip(places, places[1:])) and places[-1][1] <= 1 << 32


def test_a_missed_fault_is_drawn_next(seed):
    """The word of a refused job has the cause and the predecessor of the only missed event."""
    config, wanted = from_preset("default", n=2), ("LENGTH", "after", "STORE")
    session = Session(seed, config, missed={wanted}, directed=[Directed("refused")])
    session.draw()
    (trial,) = session.trials
    ((cause, pc),) = {fault for fault in trial.faults if fault[0] != "TIMEOUT"}
    assert cause == "LENGTH" and wanted not in session.missed
    before, word = trial.program[(pc - trial.first_pc) // 32 - 1 :][:2]
    assert before[0] is Opcode.STORE and isinstance(word, int)


def test_longest_loops_are_valid(rng):
    """Each instruction has its longest loops, as far as the memories allow, and fits them."""
    config = from_preset("transformer", n=2)
    program = long_loops(Hazards(rng, config))
    assert {opcode for opcode, _ in program} == {
        opcode for opcode, record in records(config).items() if record.unit.name == "ACTIVATE"
    } - {Opcode.LOAD_TABLE, Opcode.NORMALIZE}
    longest = max(fields["window0"] for opcode, fields in program if opcode is Opcode.POOL)
    assert longest == 255 and max(fields.get("rows1", 0) for _, fields in program) == (1 << LOOP_BITS) - 1

"""Tests of overlapped stages, covering the order of their jobs, their buffer rows, and the stalls of the array."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler import search
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.passes.im2col import Gather
from amaranth_tpu.sim.compiler.tiling.overlap import groups_of, steps_of, sums_of, take_turns, vectors_of
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term
from amaranth_tpu.sim.models.shipped import SHIPPED
from graphs import random_values
from suites import slow


def _jobs(rng, batch):
    """Returns random jobs over the batch as (first, end) samples; a job covers part of a sample, or several samples."""
    size, parts = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    return [(first, min(batch, first + size)) for first in range(0, batch, size) for _ in range(parts if size == 1 else 1)]


def test_a_job_follows_what_it_reads(rng):
    for _ in range(50):
        batch, stages = int(rng.integers(1, 9)), int(rng.integers(1, 6))
        jobs = [_jobs(rng, batch) for _ in range(stages)]
        sources = [sorted(set(rng.integers(0, stage, 2).tolist())) if stage else [] for stage in range(stages)]
        steps = steps_of(jobs, sources)
        made = {(stage, job): number for number, step in enumerate(steps) for stage, own in step.items() for job in own}
        for stage, own in enumerate(jobs):
            assert [job for step in steps for job in step.get(stage, ())] == list(range(len(own)))
            for job, (first, end) in enumerate(own):
                assert all(
                    made[other, before] < made[stage, job]
                    for other in sources[stage]
                    for before, (low, high) in enumerate(jobs[other])
                    if low < end and first < high
                )


def test_stages_overlap():
    """Two overlapped stages run so that stage 1 works on a sample while stage 0 works on the next sample."""
    assert steps_of([[(0, 1), (1, 2), (2, 3)]] * 2, [[], [0]]) == [{0: [0]}, {0: [1], 1: [0]}, {0: [2], 1: [1]}, {1: [2]}]


def test_turns_are_even():
    done, order = [0, 0], []

    def work(index, pieces):
        for _ in range(pieces):
            order.append(index)
            done[index] += 1
            yield

    counts = [4, 16]
    take_turns([work(index, count) for index, count in enumerate(counts)], lambda index: done[index] / counts[index])
    places = [place for place, index in enumerate(order) if index == 0]
    assert len(order) == sum(counts) and len(places) == counts[0]
    assert all(3 <= after - before <= 6 for before, after in zip(places, places[1:]))
    assert order[-3:] == [1] * 3  # results of the first stage can be stored before the next step


def _apart(places, first, end):
    places = sorted(places)
    return places[0][0] >= first and all(low + count <= high for (low, count), (high, _) in zip(places, [*places[1:], (end, 0)]))


def test_sums_do_not_overlap(rng):
    for _ in range(50):
        wanted = [(int(rng.integers(1, 1000)), int(rng.integers(1, 60))) for _ in range(int(rng.integers(1, 5)))]
        rows = sum(sums for _, sums in wanted) + int(rng.integers(0, 200))
        places = sums_of(wanted, rows)
        assert _apart(places, 0, rows) and all(count >= sums for (_, count), (_, sums) in zip(places, wanted))
        assert rows - sum(count for _, count in places) < min(sums for _, sums in wanted)


def test_the_longest_has_two_places_first():
    assert [count for _, count in sums_of([(448, 112), (39200, 196)], 512)] == [112, 392]


def test_stage_alone_has_operands_of_a_job(rng):
    """A stage alone gets the operands of two jobs, or of one job if the buffer has no more rows; with fewer rows, it fits
    nowhere."""
    for _ in range(50):
        operands, slots, staging = (int(rng.integers(1, limit)) for limit in (200, 4, 100))
        plan, least = SimpleNamespace(operands=operands, slots=slots, staging=staging), operands + slots * staging
        assert vectors_of([plan], 64, 64 + least - 1, False) is None
        for rows in (least, least + operands // 2, least + operands + 9):
            (((_, count), _),) = vectors_of([plan], 64, 64 + rows, False)
            assert count == min(2 * operands, rows - slots * staging)


def test_vectors_have_places_of_their_own(rng):
    for _ in range(50):
        plans = [
            SimpleNamespace(operands=int(rng.integers(1, 200)), slots=int(rng.integers(1, 4)), staging=int(rng.integers(1, 100)))
            for _ in range(int(rng.integers(2, 5)))
        ]
        needed = sum(2 * plan.operands + plan.slots * plan.staging for plan in plans)
        assert vectors_of(plans, 64, 64 + needed - 1, False) is None
        end = 64 + needed + int(rng.integers(0, 100))
        shares = vectors_of(plans, 64, end, bool(rng.integers(0, 2)))
        assert all(operands[1] >= 2 * plan.operands for (operands, _), plan in zip(shares, plans))
        assert _apart(
            [
                place
                for (operands, results), plan in zip(shares, plans)
                for place in (operands, (results, plan.slots * plan.staging))
            ],
            64,
            end,
        )


def test_groups():
    assert groups_of(range(5), lambda group: len(group) < 3) == [[0, 1], [2, 3], [4]]
    assert groups_of(range(2), lambda group: False) == [[0], [1]]


@pytest.mark.slow
@pytest.mark.parametrize("name, waiting", [("a", 0.013), *slow(("c", 0.025))])
def test_the_array_does_not_wait(name, waiting):
    """With overlapped stages, networks `a` and `c` stall the array for less than 1.3 and 2.5 % of their cycles. Without overlap,
    their first layers stall it for half of the time."""
    program = compile_network(load_network(SHIPPED[name]), Config(), 32)
    assert program.predicted_cycles / program.cost.compute_cycles - 1 < waiting


def test_every_stage_is_in_one_group(rng, monkeypatch):
    """Each stage belongs to exactly one group for any simulation budget, and the largest budget saves over 5 % of the cycles."""
    tensors = [Tensor(f"t{number}", 8, 12, 12) for number in range(6)]
    stages = [
        Stage(one.name, other.name, (Term(one.name, random_values(rng, (3, 3, 8, 8)), padding=(1, 1)),), (12, 12))
        for one, other in zip(tensors, tensors[1:])
    ]
    graph = Graph("g", {one.name: one for one in tensors}, "t0", "t5", tuple(stages))
    config, cycles = Config(n=8, unified_buffer_depth=512, accumulator_depth=256), []
    monkeypatch.setattr(search, "_OVERLAP_PASSES", 0)
    for budget in (0, 400, 1000, 20_000):
        monkeypatch.setattr(search, "_PART_PASSES", budget)
        choice, schedule = search.search(graph, replace(graph, gathers=(Gather("t0", tensors[0]),)), config, 3)
        assert [number for run in choice.runs for number in run.stages] == list(range(5))
        cycles.append(schedule.cycles)
    assert cycles[-1] < 0.95 * cycles[0], cycles


def test_runs_that_cannot_be_the_fastest():
    """A run is simulated only up to the cycles of the fastest earlier runs that cover the same stages."""
    tried = [(cycles, SimpleNamespace(stages=range(*stages))) for cycles, *stages in ((9, 2, 5), (3, 2, 3), (5, 3, 5), (1, 3, 4))]
    least = [search._least_cycles(tried, range(*stages)) for stages in ((2, 5), (2, 4), (3, 5), (4, 5), (1, 3))]
    assert least == [8, 4, 5, None, None]


def test_equal_instructions_are_simulated_once(monkeypatch):
    """The search simulates no two single runs with the same instructions."""
    seen = []

    def cycles_of(candidate, config, limit):
        seen.append([(op.opcode, *op.fields.items(), *op.waits, op.stage) for op in candidate.ops])
        return cycles(candidate, config, limit)

    cycles = search._cycles_of
    monkeypatch.setattr(search, "_cycles_of", cycles_of)
    compile_network(load_network(SHIPPED["c"]), Config(), 1)
    assert len(seen) > 5 and all(one not in seen[:index] for index, one in enumerate(seen))

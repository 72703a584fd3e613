"""Runs of equal branches (:mod:`sim.compiler.tiling.branches`): candidates of the search."""

from contextlib import suppress
from dataclasses import replace
from itertools import chain

from .branches import equal_branches
from .chunk_tiling import RunPlan
from .overlap import fit_together
from .resident import with_residents
from .stage_tiling import NothingFits, plan_stage

__all__ = ["side_by_side"]

_SIZES = 2  # sizes of jobs that are tried


def side_by_side(batched, host, config):
    """Returns a list of runs that cover equal branches, without and with resident tensors. Jobs have one sample, or several if
    that is faster. For both, the runs have the largest jobs with which the stages of a branch fit into memory at the same time,
    and smaller ones."""
    found = []
    branches = (equal_branches(batched, numbers, host.layouts) for numbers in batched.runs(along_x=False))
    for stages, count in chain.from_iterable(branches):
        for planned in (replace(batched, batch=1), batched):
            sizes = 0
            with suppress(NothingFits):
                for plans in _smaller_plans(planned, stages[: len(stages) // count], host, config):
                    run = RunPlan(stages, plans * count, branches=count)
                    made = [one for one in _branch_runs(batched, run, host, config) if one not in found]
                    found += made
                    sizes += bool(made)
                    if sizes == _SIZES:
                        break
    return found


def _smaller_plans(batched, numbers, host, config):
    """Yields tuples of plans for stages, with smaller and smaller jobs: the stage that uses the most accumulator rows is planned
    again for half of these. Raises NothingFits."""
    space, depths = config.unified_buffer_depth - host.zeros, [config.accumulator_depth] * len(numbers)
    plans = [plan_stage(batched, number, config, host.layouts, space, depth) for number, depth in zip(numbers, depths)]
    while True:
        yield tuple(plans)
        most = max(range(len(plans)), key=lambda index: plans[index].sums)
        plans[most] = plan_stage(batched, numbers[most], config, host.layouts, space, plans[most].sums // 2)


def _branch_runs(batched, run, host, config):
    """Returns the run of equal branches if it fits into memory, and the run with resident tensors if this fits."""
    end = config.unified_buffer_depth
    resident = with_residents(batched, run, config, host.layouts, host.zeros, config.accumulator_depth)
    fits = fit_together(batched, config, host.zeros, end, list(zip(run.branch, run.plans)))
    return [*([run] if fits else ()), *([resident] if resident else ())]

"""Resident tensors. They stay in the unified buffer between overlapping stages, from the stage that writes them to the stages
that read them.

A tensor that is stored in host memory passes the buffer's vector port three times; a resident tensor passes it once. A resident
tensor has space for the samples that are in flight between its writer and its last reader.
"""

from contextlib import suppress
from dataclasses import replace

from ..memory.areas import whole_area
from ..memory.batching import reads
from .branches import counterparts
from .overlap import numbered, share_a_table, sources_of, vectors_of
from .stage_tiling import NothingFits, plan_stage

__all__ = ["with_residents"]

_TABLE_SHARE = 64  # a stage with a table and resident operands has at least 1/64 of the buffer for operands


def with_residents(batched, run, config, layouts, first, depth):
    """Returns a RunPlan in which tensors are resident. Returns None if no such plan fits, or if the stages need several function
    tables. Tensors are made resident one after the other, the largest first. If no single tensor fits, all are tried together.

    Parameters
    ----------
    batched : Batched
    run : RunPlan
        A run of overlapping stages.
    config : Config
    layouts : dict of str to Layout
    first : int
        First vector of the unified buffer that the run may use.
    depth : int
        Accumulator rows available to each stage.
    """
    if not share_a_table(batched.stages[number] for number in run.stages):
        return None
    names, best = _candidates(batched, run.branch), None
    for name in sorted(names, key=lambda name: -layouts[name].sample):
        kept = {*best.homes, name} if best else {name}
        with suppress(NothingFits):
            best = _planned(batched, run, config, layouts, first, depth, kept) or best
    with suppress(NothingFits):
        best = best or len(names) > 1 and _planned(batched, run, config, layouts, first, depth, {*names}) or None
    return best


def _candidates(batched, numbers):
    """Returns the names of the tensors that can be resident: one of the stages `numbers` writes the whole tensor, and other
    stages among them read it only as an operand."""
    stages, found = batched.stages, []
    for number in numbers:
        name = stages[number].output
        users = [other for other, stage in enumerate(stages) if name in {*reads(stage), stage.output}]
        if (
            users[1:]
            and {*users} <= {*numbers}
            and stages[number].origin == (0, 0)
            and all(_is_operand(name, stages[user]) for user in users if user != number)
        ):
            found.append(name)
    return found


def _is_operand(name, stage):
    """Returns True if a stage reads the tensor only as an operand, of its sums or of a product, and may read it from its home."""
    other = {stage.output, *(term.data for term in stage.terms)}
    return name not in other


def _planned(batched, run, config, layouts, first, depth, kept):
    """Returns the run with the tensors `kept` resident. Returns None if the buffer or the accumulators are too small."""
    stages = [batched.stages[number] for number in run.branch]
    users = [not kept.isdisjoint({*reads(stage), stage.output}) for stage in stages]
    sizes = {name: whole_area(layouts[name], (0, 1)).size for name in kept}
    space = config.unified_buffer_depth - first - sum(sizes.values())
    plans = [
        _with_table(plan_stage(batched, number, config, layouts, space, _depth(run, plan, depth), kept), stage, config)
        if uses
        else plan
        for number, stage, plan, uses in zip(run.branch, stages, run.plans, users)
    ]
    made = replace(run, plans=tuple(plans) * run.branches)
    jobs = [
        sorted(
            made.turns(other, job.samples, batched.batch)
            for other in range(number, run.stages.stop, len(run.branch))
            for job in plan.rectangles(stage, batched)
        )
        for number, plan, stage in zip(run.branch, plans, stages)
    ]
    steps = numbered(jobs, sources_of(stages, batched.tensors))
    homes, size = {}, 0
    # An instruction that multiplies holds up accesses between its operand and its result. With products at the lowest addresses,
    # other tiles of the operand are not between them.
    for index, stage in sorted(enumerate(stages), key=lambda entry: not entry[1].times):
        if stage.output in kept:
            readers = [reader for reader, other in enumerate(stages) if stage.output in reads(other)]
            homes[stage.output] = size, max(_under_way(jobs, steps, index, reader) for reader in readers)
            size += sizes[stage.output] * homes[stage.output][1]
    if (
        first + size > config.unified_buffer_depth
        or sum(plan.sums for plan in plans) > config.accumulator_depth
        or vectors_of(plans, first + size, config.unified_buffer_depth, False) is None
    ):
        return None
    alike = counterparts(batched, run.stages, run.branches)
    homes = {other: homes[name] for name in homes for other in alike[name]}
    return replace(made, homes=homes, home_size=size)


def _depth(run, plan, depth):
    """Returns the accumulator rows available to a stage. In a run of equal branches, these are twice the rows of its plan: all
    stages then still fit, with jobs of the same size."""
    return min(depth, 2 * plan.sums) if run.branches > 1 else depth


def _with_table(plan, stage, config):
    """Returns the plan of a stage. If the stage has a function table, the plan has space for operands, which is needed to load
    the table."""
    space = max(1, config.unified_buffer_depth // _TABLE_SHARE)
    return replace(plan, operands=max(plan.operands, space)) if stage.function.is_table else plan


def _under_way(jobs, steps, writer, reader):
    """Returns the number of samples that are in flight between a writer and a reader. With this number of areas, no sample is
    written in the step in which the previous sample of the same area is read. `jobs` and `steps` are as in :func:`.numbered`."""
    begin = {first: step for (first, _), step in zip(reversed(jobs[writer]), reversed(steps[writer]))}
    end = {first: step for (first, _), step in zip(jobs[reader], steps[reader])}
    return next(
        count
        for count in range(1, len(begin) + 1)
        if all(begin.get(sample + count, step + 1) > step for sample, step in end.items())
    )

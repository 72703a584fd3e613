"""Overlapping stages: while a stage works on a sample, the stages before it work on later samples.

A stage alone is limited by its bottleneck: the array, the activation unit, the port of the unified buffer, or the bus. Stages
that take turns balance these loads.
"""

from ..memory.batching import reads, writes

__all__ = ["APART", "FAR_APART", "groups_of", "vectors_of", "sums_of", "sources_of", "numbered", "steps_of", "take_turns"]

#: Distance from a stage's last piece to its reader's first piece in the next step, as a share of a step. `APART` suits waits
#: : for the accumulators, `FAR_APART` waits for the path through host memory.
APART, FAR_APART = 0.3, 1.0


def groups_of(stages, fits):
    """Returns stages in groups that overlap. Each group grows while `fits(group)` holds."""
    groups = []
    for stage in stages:
        if groups and fits([*groups[-1], stage]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def vectors_of(plans, first, end, low):
    """Returns the vectors between `first` and `end` for each overlapping stage: `(first, count)` for operands, and the first
    vector for results. None if they do not fit.

    Operands of more than two jobs would be loaded while results wait for the port. The remaining vectors are therefore left to
    the following stages: runs alternate between the `low` end and the high end.
    """
    needed = [2 * plan.operands + plan.slots * plan.staging for plan in plans]
    if len(plans) > 1 and sum(needed) > end - first:
        return None
    needed[0] = min(needed[0], end - first)
    shares, first = [], first if low else end - sum(needed)
    for plan, vectors in zip(plans, needed):
        results = first + vectors - plan.slots * plan.staging
        shares.append(((first, results - first), results))
        first += vectors
    return shares


def sums_of(wanted, rows):
    """Returns `(first, count)` of the accumulator rows of stages that take turns. `wanted` has `(cycles, rows)` of one piece of
    work of each stage.

    Each stage gets rows for one piece. Spare rows go to the longest stages first: the other stages' sums have been read by their
    next turn.
    """
    counts = [sums for _, sums in wanted]
    order = sorted(range(len(wanted)), key=lambda index: -wanted[index][0])
    spare = rows - sum(counts)
    while spare >= min(sums for _, sums in wanted):
        for index in order:
            if wanted[index][1] <= spare:
                counts[index] += wanted[index][1]
                spare -= wanted[index][1]
    return [(sum(counts[:index]), count) for index, count in enumerate(counts)]


def sources_of(stages, tensors):
    """Returns, for each of these stages, the indices of the stages among them that write its operands."""
    read = [{tensors[name].transpose_of or name for name in reads(stage)} for stage in stages]
    return [[index for index, other in enumerate(stages) if writes(other) & names] for names in read]


def numbered(jobs, sources):
    """Returns the step of every job of each stage.

    Parameters
    ----------
    jobs : for every stage, `(first sample, end)` of its jobs in order
    sources : for every stage, the stages before it that it reads

    A job runs in a later step than all jobs that it reads, and not before the step of its last sample. Jobs of several stages in
    the same step are therefore independent.
    """
    steps, step_of = [], []
    for own, read in zip(jobs, sources):
        made, numbers = [], []
        for first, end in own:
            step = max([end - 1, *made[-1:], *(1 + step_of[other][sample] for other in read for sample in range(first, end))])
            made += [step] * (end - len(made))
            numbers.append(step)
        steps.append(numbers)
        step_of.append(made)
    return steps


def steps_of(jobs, sources):
    """Returns, step by step, the jobs that can run side by side: `{stage: its jobs}`, for jobs as in :func:`numbered`."""
    steps = {}
    for stage, numbers in enumerate(numbered(jobs, sources)):
        for job, step in enumerate(numbers):
            steps.setdefault(step, {}).setdefault(stage, []).append(job)
    return [steps[step] for step in sorted(steps)]


def take_turns(works, progress, apart=APART):
    """Runs generators to their ends, always the one with the least progress next. `progress(index)` is from 0 to 1. Earlier
    stages run ahead of later ones, which read their results in the next step: by the share `apart` from the first to the last."""
    works, early = dict(enumerate(works)), apart / len(works)
    pace = {index: 1 - early * (len(works) - 1 - index) for index in works}
    while works:
        index = min(works, key=lambda index: (progress(index) * pace[index], index))
        try:
            next(works[index])
        except StopIteration:
            del works[index]

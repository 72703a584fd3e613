"""Stages that overlap: while one works on a sample, the stages before it work on the next samples.

A stage alone is as slow as what it needs most: the array, the activation unit, the port of the unified buffer, the bus. Stages
that take turns even that out.
"""

from ..memory.batching import reads, writes

__all__ = ["APART", "FAR_APART", "groups_of", "vectors_of", "sums_of", "sources_of", "numbered", "steps_of", "take_turns"]

#: Part of a step between the last piece of a stage and the first of what reads its results, in the next step: while what waits in
#: the accumulators counts, and while the way through host memory does.
APART, FAR_APART = 0.3, 1.0


def groups_of(stages, fits):
    """Stages in groups that overlap: as many in each as `fits`, which is given a group."""
    groups = []
    for stage in stages:
        if groups and fits([*groups[-1], stage]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def vectors_of(plans, first, end, low):
    """Vectors between `first` and `end` of each of the stages that overlap: `(first, count)` for operands, and the first for
    results. None if they don't fit. Operands of more jobs than two would come while results wait for the port, so the rest is
    left to the stages that follow: some should have the `low` end, the next ones the other."""
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
    """`(first, count)` of the accumulator rows of stages that take turns, of which `wanted` has the cycles and the rows of one
    piece of work. Each has room for one; the longest have room for several, as the others' sums are gone by their next turn."""
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
    """Of every one of these stages, those of them that write what it reads, by their places in the sequence."""
    read = [{tensors[name].transpose_of or name for name in reads(stage)} for stage in stages]
    return [[index for index, other in enumerate(stages) if writes(other) & names] for names in read]


def numbered(jobs, sources):
    """Numbers of the steps in which stages run: of every stage, one for each of its jobs.

    Parameters
    ----------
    jobs : of every stage, `(first sample, end)` of its jobs in order
    sources : of every stage, the stages before it that it reads

    A job runs in a later step than all that it reads, and not before that of its last sample. So the jobs that several stages
    have in a step do not depend on each other.
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
    """What can run side by side, step by step: `{stage: its jobs}`, for jobs as :func:`numbered` has them."""
    steps = {}
    for stage, numbers in enumerate(numbered(jobs, sources)):
        for job, step in enumerate(numbers):
            steps.setdefault(step, {}).setdefault(stage, []).append(job)
    return [steps[step] for step in sorted(steps)]


def take_turns(works, progress, apart=APART):
    """Runs generators to their ends, the one with the least progress next. `progress(index)` is from 0 to 1; the first are
    ahead of those behind them, which read in the next step what they make in this one: over all of them by the part `apart`."""
    works, early = dict(enumerate(works)), apart / len(works)
    pace = {index: 1 - early * (len(works) - 1 - index) for index in works}
    while works:
        index = min(works, key=lambda index: (progress(index) * pace[index], index))
        try:
            next(works[index])
        except StopIteration:
            del works[index]

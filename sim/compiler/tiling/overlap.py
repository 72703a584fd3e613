"""Overlapping stages: while one stage works on a sample, the stages before it work on later samples.

A stage alone is limited by its bottleneck: the array, the activation unit, the port of the unified buffer, or the bus. If jobs of
several stages alternate, these units are used more evenly.
"""

from ..memory.batching import reads

__all__ = [
    "APART",
    "FAR_APART",
    "IN_TURN",
    "groups_of",
    "vectors_of",
    "fit_together",
    "share_a_table",
    "sums_of",
    "sources_of",
    "numbered",
    "steps_of",
    "take_turns",
]

#: Time between a stage's last job and the reader's first job in the next step, as a share of a step. `APART` is best if stages
#: wait for the accumulators, `FAR_APART` if they wait for transfers through host memory. With `IN_TURN`, a step has all jobs of a
#: stage before the jobs of later stages.
APART, FAR_APART, IN_TURN = 0.3, 1.0, 1000.0


def groups_of(stages, fits):
    """Divides consecutive stages into groups of stages that overlap, and returns the groups. A group grows as long as
    `fits(group)` is true."""
    groups = []
    for stage in stages:
        if groups and fits([*groups[-1], stage]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def vectors_of(plans, first, end, low):
    """Divides buffer rows `first` to `end` among overlapping stages. Returns `((first, count) for operands, first row for
    results)` for each stage. Returns None if the rows do not fit.

    Each stage gets memory for the operands of only two jobs: with more, operands would be loaded while results wait for the
    buffer's port. The remaining rows are left to the next run. Consecutive runs therefore alternate between the low end of the
    buffer (`low` is True) and the high end.
    """
    needed = [2 * plan.operands + plan.slots * plan.staging for plan in plans]
    least = sum(needed) if len(plans) > 1 else needed[0] - plans[0].operands  # a stage alone may have operands of one job
    if least > end - first:
        return None
    needed[0] = min(needed[0], end - first)
    shares, first = [], first if low else end - sum(needed)
    for plan, vectors in zip(plans, needed):
        results = first + vectors - plan.slots * plan.staging
        shares.append(((first, results - first), results))
        first += vectors
    return shares


def fit_together(batched, config, first, end, group):
    """Returns True if the stages of a group, as (index, StagePlan), fit into the accumulators and into buffer rows `first` to
    `end` at the same time, and use at most one function table."""
    return (
        share_a_table(batched.stages[number] for number, _ in group)
        and sum(plan.sums for _, plan in group) <= config.accumulator_depth
        and vectors_of([plan for _, plan in group], first, end, False) is not None
    )


def share_a_table(stages):
    """Returns True if stages use at most one function table. Overlapping stages must: a run selects its table before its first
    job."""
    return len({stage.function.key for stage in stages if stage.function.is_table}) < 2


def sums_of(wanted, rows):
    """Divides `rows` accumulator rows among stages whose jobs alternate. Returns `(first, count)` for each stage. `wanted` has
    `(cycles, rows)` for one group of column tiles of each stage.

    Each stage gets the rows of one group. Spare rows go first to the stages that take the most cycles. The other stages need
    fewer rows: their sums have been read when their next group begins.
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
    """Returns, for each of these stages, the indices in `stages` of the stages that write its operands."""
    of = {name: tensor.view.of if tensor.view else name for name, tensor in tensors.items()}
    read = [{of[name] for name in reads(stage)} for stage in stages]
    return [[index for index, other in enumerate(stages) if other.output in names] for names in read]


def numbered(jobs, sources):
    """Assigns jobs to steps. Returns, for each stage, the list of the steps of its jobs.

    Parameters
    ----------
    jobs : list of list of (int, int)
        For every stage: the sample range `(first, end)` of each job, in order.
    sources : list of list of int
        For every stage: the indices of the stages whose results it reads.

    A job runs in a later step than all jobs whose results it reads, and not before the step with the number of its last sample.
    Jobs of several stages in the same step are therefore independent.
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
    """Returns, for each step in order, the jobs that can run at the same time, as `{stage: [job indices]}`. Parameters: see
    :func:`numbered`."""
    steps = {}
    for stage, numbers in enumerate(numbered(jobs, sources)):
        for job, step in enumerate(numbers):
            steps.setdefault(step, {}).setdefault(stage, []).append(job)
    return [steps[step] for step in sorted(steps)]


def take_turns(works, progress, apart=APART):
    """Runs generators to their ends, interleaved. The generator with the least progress always continues next. `progress(index)`
    returns a generator's progress, from 0 to 1. Earlier stages run ahead of later stages, which read their results in the next
    step. The lead of the first stage over the last is the share `apart` of a step. A generator changes only its own progress."""
    works, early = dict(enumerate(works)), apart / len(works)
    pace = {index: 1 - early * (len(works) - 1 - index) for index in works}
    order = {index: (progress(index) * pace[index], index) for index in works}
    while order:
        _, index = min(order.values())
        try:
            next(works[index])
            order[index] = progress(index) * pace[index], index
        except StopIteration:
            del order[index]

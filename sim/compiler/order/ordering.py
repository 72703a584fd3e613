"""The order of the jobs of a step without convolutions. Sums that do not depend on each other alternate, so that the units
overlap. The jobs of updates form a pipeline between them.
"""

from collections import Counter
from itertools import repeat

from ..tiling.runs import Completed, dependencies_of, runs_of, updates_of, weaves
from ..timing.estimates import array_cycles, softmax_cycles
from ..tuning import CHUNK_LATENCY, CHUNK_WAIT
from .pipeline import Pipeline

__all__ = ["woven"]


def woven(sums, writer, config):
    """Yields `(sum, job)` in the order in which the jobs of a step are emitted, once for each step of the job.

    Parameters
    ----------
    sums : list of MatrixSum or Move
    writer : JobWriter
        Plans the jobs of a run.
    config : Config
    """
    runs = runs_of(sums)
    updates, weaving, completed = updates_of(runs), weaves(sums), Completed(sums)
    main = _in_time([(one, writer.jobs([one])) for run in runs if not run[0].is_update for one in run], config)
    left, pipeline = Counter(id(one) for one, _ in main), Pipeline(updates, config)
    for one, job in main:
        yield from repeat((one, job), one.steps)
        left[id(one)] -= 1
        if left[id(one)]:
            continue
        completed.finish([one])
        ready = []
        for run in updates if weaving else ():
            if completed.is_ready(run):
                ready.append(run)
                if len(run) == 1:  # its jobs precede the jobs of the next runs
                    completed.finish(run)
        pipeline.items += [(run, job) for run in ready for job in writer.jobs(run)]
        updates = [run for run in updates if run not in ready]
        yield from pipeline.advanced(pipeline.steps(1 + len(+left)))
    pipeline.items += [(run, job) for run in updates for job in writer.jobs(run)]
    yield from pipeline.rest()


def _in_time(items, config):
    """Returns `(sum, job)` in an order in which the array waits little. The next job is always the one that can start first. Of
    several such jobs, the first samples come first.

    `items` are sums with their jobs, in an order in which they can be computed.
    """
    before = [read | other for read, other in dependencies_of([one for one, _ in items])]
    clock, ends, order, left = 0, {}, [], {number: list(jobs) for number, (_, jobs) in enumerate(items)}

    def key(number):
        start = max([clock, *(ends[other] for other in before[number])])
        return max(0, start - clock - CHUNK_WAIT), (items[number][0].span or (0, 0))[0], number

    while left:
        number = min((one for one in left if before[one] <= ends.keys()), key=key)
        job, (one, _) = left[number].pop(0), items[number]
        start = max([clock, *(ends[other] for other in before[number])])
        order.append((one, job))
        clock = start + array_cycles(one, job, config)
        if not left[number]:
            del left[number]
            of_rows = [softmax_cycles(one, job, config, result.softmax) for result in one.results if result.softmax]
            ends[number] = clock + CHUNK_LATENCY + sum(of_rows)
    return order

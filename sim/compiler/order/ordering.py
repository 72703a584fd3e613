"""The order of the jobs of a step without convolutions. Sums that do not depend on each other alternate, so that the units
overlap. The jobs of updates form a pipeline between them.
"""

from collections import Counter
from itertools import repeat

from ..tiling.runs import Completed, dependencies_of, runs_of, updates_of, weaves
from ..timing.estimates import array_cycles, softmax_cycles
from .pipeline import Pipeline

__all__ = ["woven"]

_WINDOW = 32  # sums among which the next one is chosen
_WORTH = 300  # cycles that the array waits, from which updates begin early
_LAG = 4  # sums from a sum to its reader, if possible
_WAIT = 160  # cycles that the array waits for a job of earlier samples
_LATENCY = 150  # cycles from the last row of a job in the array to a job that reads its results


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
    main = _main([one for run in runs if not run[0].is_update for one in run], writer.jobs, config)
    left, pipeline, held = Counter(id(one) for one, *_ in main), Pipeline(updates, config), []
    before, gap = _longest_wait(main) if weaving else (None, None)
    for number, (one, job, _) in enumerate(main):
        if number == before and not pipeline.items and (run := _early(updates, main, completed)):
            held = [(run[0], job) for job in writer.hold(run, main[gap][2], [(one, job) for one, job, _ in main[number:]])]
            yield from held[:1]
        if number == gap:
            yield from held[:1]
            yield from (item for item in held[1:] for _ in range(2))
        yield from repeat((one, job), one.steps)
        left[id(one)] -= 1
        if left[id(one)]:
            continue
        completed.finish([one])
        ready = []
        for run in updates if weaving else ():
            if completed.is_ready(run):
                ready.append(run)
                if len(run) == 1:  # its jobs precede those of the next runs
                    completed.finish(run)
        pipeline.items += [(run, job) for run in ready for job in writer.jobs(run)]
        updates = [run for run in updates if run not in ready]
        yield from pipeline.advanced(pipeline.steps(1 + len(+left)))
    pipeline.items += [(run, job) for run in updates for job in writer.jobs(run)]
    yield from pipeline.rest()


def _early(updates, main, completed):
    """Returns the largest update whose operands are computed, except the last samples' gradients. Else returns None."""
    last = max(one.span[0] for one, *_ in main if one.span)
    missing = [one for one, *_ in main if one.span and one.span[0] == last]
    ready = [run for run in updates if _may_begin(run) and completed.is_ready(run[:1], missing)]
    return max(ready, key=lambda run: run[0].shape.size, default=None)


def _may_begin(run):
    one = run[0]
    first = next(iter(one.products), None)
    return bool(first and one.early and not one.start and first.kind == "matrix" and first.turned and not first.own)


def _longest_wait(main):
    """Returns the place of the Softmax for which the array waits longest, and the place of the job that waits. Returns (None,
    None) if the wait is short."""
    gap = max(range(len(main)), key=lambda number: main[number][2], default=None)
    if gap is None or main[gap][2] < _WORTH:
        return None, None
    found = [number for number in range(gap) if any(result.softmax for result in main[number][0].results)]
    return (found[-1], gap) if found else (None, None)


def _main(sums, jobs, config):
    """Returns the jobs of the sums of samples, `(sum, job, cycles that the array waits before it)`, in order."""
    if any(one.span for one in sums):
        return _in_time([(one, jobs([one])) for one in sums], config)
    return [(one, job, 0) for one in _in_turns(sums) for job in jobs([one])]


def _in_time(items, config):
    """Returns `(sum, job, cycles that the array waits before it)` in an order in which the array waits little. The
    next job is always the one that can start first. Of several such jobs, the first samples come first.

    `items` are sums with their jobs, in an order in which they can be computed.
    """
    before = [read | other for read, other in dependencies_of([one for one, _ in items])]
    clock, ends, order, left = 0, {}, [], {number: list(jobs) for number, (_, jobs) in enumerate(items)}

    def key(number):
        start = max([clock, *(ends[other] for other in before[number])])
        return max(0, start - clock - _WAIT), items[number][0].rows.start, number

    while left:
        number = min((one for one in left if before[one] <= ends.keys()), key=key)
        job, (one, _) = left[number].pop(0), items[number]
        start = max([clock, *(ends[other] for other in before[number])])
        order.append((one, job, start - clock))
        clock = start + array_cycles(one, job, config)
        if not left[number]:
            del left[number]
            ends[number] = clock + _LATENCY + sum(softmax_cycles(one, job, config) for result in one.results if result.softmax)
    return order


def _in_turns(sums):
    """Returns the sums in an order in which each is, if possible, some sums after those whose results it reads. Sums with the
    same function by table follow each other."""
    dependencies, places, left, order, selected = dependencies_of(sums), {}, list(range(len(sums))), [], None

    def wait(number):
        last = max((places[other] for other in dependencies[number][0]), default=-_LAG)
        return sums[number].table not in (None, selected), max(0, last + _LAG - len(order)), number

    while left:
        ready = [one for one in left[:_WINDOW] if all(places.keys() >= some for some in dependencies[one])]
        number = min(ready, key=wait)
        left.remove(number)
        places[number] = len(order)
        order.append(sums[number])
        selected = sums[number].table or selected
    return order

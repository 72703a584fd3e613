"""The order of the jobs of a step. Sums that do not depend on each other alternate, so that the units overlap.

The updates of a parameter are a run: a gradient, and sums that read the results of sums before them in the same rows. The jobs of
all runs form a pipeline: when the gradient of a job is computed, the next sum takes the job before it.
"""

from collections import Counter
from itertools import repeat

from .chunks import in_time
from .pacing import table_of_sum
from .pipeline import Pipeline
from .ring import AllReduce, ReduceScatter
from .sums import Expansion, MatrixSum

__all__ = ["dependencies_of", "in_turns", "is_update", "last_layers_first", "runs_of", "weaves", "woven"]

_WINDOW = 32  # sums among which the next one is chosen
_WORTH = 300  # cycles that the array waits, from which updates begin early
_LAG = 4  # sums from a sum to its reader, if possible


def _accesses(one, chunks=(0,)):
    """Returns the matrices that a sum reads and writes, by address and by first row of each chunk of the batch."""

    def places(matrix):
        first = {one.span[0]} if getattr(one, "span", None) and matrix.form == "samples" else chunks
        return {(matrix.region, matrix.vector, row) for row in first}

    return [set().union(*map(places, some)) for some in (one.reads, one.writes)]


def dependencies_of(sums):
    """Returns, for each sum, the numbers of the sums whose results it reads, and of those that must precede it for another
    reason."""
    writers, readers, found = {}, {}, []
    chunks = {one.span[0] for one in sums if getattr(one, "span", None)} or {0}
    for number, one in enumerate(sums):
        reads, writes = _accesses(one, chunks)
        read = {writers[place] for place in reads if place in writers}
        before = {writers[place] for place in writes if place in writers}
        before |= {reader for place in writes for reader in readers.get(place, ())}
        found.append((read, before))
        for place in reads:
            readers.setdefault(place, set()).add(number)
        for place in writes:
            writers[place] = number
            readers[place] = set()
    return found


def runs_of(sums):
    """Divides sums into lists: each sum of samples by itself, and the sums of a parameter's update."""
    runs = []
    for one in sums:
        last = runs[-1] if runs else []
        runs.append([one]) if not (last and _continues(last, one)) else last.append(one)
    return runs


def _continues(run, one):
    """Returns True if a sum reads only the same rows of results of a run's sums, and of other matrices."""
    written, last = {place for other in run for place in _accesses(other)[1]}, run[-1]
    if isinstance(one, ReduceScatter):
        return one.joined and bool(written & _accesses(one)[0])
    if not isinstance(one, MatrixSum) or isinstance(last, (AllReduce, Expansion)) or one.shape.form == "samples":
        return False
    if one.is_image or getattr(run[0], "is_image", False):
        return False
    shape = last.total if isinstance(last, ReduceScatter) else last.shape
    return (
        (shape.form, shape.rows, shape.channels) == (one.shape.form, one.shape.rows, one.shape.channels)
        and all(some.kind == "diagonal" for some in one.products)
        and bool(written & _accesses(one)[0])
    )


def weaves(sums):
    """Returns True if updates can be emitted between sums of samples. Updates with functions by table, or of several steps,
    follow all sums of samples."""
    updates = [one for run in runs_of(sums) if is_update(run) for one in run if isinstance(one, MatrixSum)]
    return not any(table_of_sum(one) or one.steps > 1 for one in updates)


def woven(sums, writer, config):
    """Yields `(sum, job)` in the order in which the jobs of a step are emitted, once for each step of the job.

    Parameters
    ----------
    sums : list of MatrixSum, Expansion or AllReduce
    writer : JobWriter
        Plans the jobs of a run.
    config : Config
    """
    runs = runs_of(sums)
    updates = last_layers_first([run for run in runs if is_update(run)])
    main = _main([one for run in runs if not is_update(run) for one in run], writer.jobs, config)
    left = Counter(id(one) for one, _, _ in main)
    pipeline, weaving, done = Pipeline(updates), weaves(sums), set()
    dependencies = dict(zip(map(id, sums), dependencies_of(sums)))
    numbers = {id(one): number for number, one in enumerate(sums)}

    def is_ready(run):
        own = {numbers[id(one)] for one in run}
        return all(read | before <= done | own for read, before in (dependencies[id(one)] for one in run))

    def early():
        """Returns the largest update whose operands are computed, except the last samples' gradients. Else returns None."""
        last = max(one.span[0] for one, *_ in main if one.span)
        missing = {numbers[id(one)] for one, *_ in main if one.span and one.span[0] == last}
        ready = [run for run in updates if _may_begin(run) and set.union(*dependencies[id(run[0])]) <= done | missing]
        return max(ready, key=lambda run: run[0].shape.size, default=None)

    before, gap = _longest_wait(main) if weaving else (None, None)
    held = []
    for number, (one, job, _) in enumerate(main):
        if number == before and not pipeline.items and (run := early()):
            held = [(run[0], job) for job in writer.hold(run, main[gap][2], [(one, job) for one, job, _ in main[number:]])]
            yield from held[:1]
        if number == gap:
            yield from held[:1]
            yield from (item for item in held[1:] for _ in range(2))
        yield from repeat((one, job), getattr(one, "steps", 1))
        left[id(one)] -= 1
        if left[id(one)]:
            continue
        done.add(numbers[id(one)])
        ready = []
        for run in updates:
            if weaving and is_ready(run):
                ready.append(run)
                done |= {numbers[id(one)] for one in run if len(run) == 1}  # its jobs precede those of the next runs
        pipeline.items += [(run, job) for run in ready for job in writer.jobs(run)]
        updates = [run for run in updates if run not in ready]
        yield from pipeline.advanced(pipeline.steps(len(+left + Counter([None]))))
    pipeline.items += [(run, job) for run in updates for job in writer.jobs(run)]
    yield from pipeline.advanced(len(pipeline.items) - pipeline.begun + pipeline.depth)


def _may_begin(run):
    """Returns True if an update begins with sums over samples, whose last chunk is apart."""
    one = run[0]
    if not isinstance(one, MatrixSum) or not one.early or one.start:
        return False
    first = one.products[0]
    return first.kind == "matrix" and first.turned and not first.own


def _longest_wait(main):
    """Returns the place of the Softmax for which the array waits longest, and the place of the job that waits. Returns (None,
    None) if the wait is short."""
    gap = max(range(len(main)), key=lambda number: main[number][2], default=None)
    if gap is None or main[gap][2] < _WORTH:
        return None, None
    found = [number for number in range(gap) if any(result.softmax for result in getattr(main[number][0], "results", ()))]
    return (found[-1], gap) if found else (None, None)


def _main(sums, jobs, config):
    """Returns the jobs of the sums of samples, `(sum, job, cycles that the array waits before it)`, in order."""
    if not any(getattr(one, "span", None) for one in sums):
        return [(one, job, 0) for one in in_turns(sums) for job in jobs([one])]
    dependencies = [read | before for read, before in dependencies_of(sums)]
    return [
        (sums[number], job, wait) for number, job, wait in in_time([(one, jobs([one])) for one in sums], dependencies, config)
    ]


def last_layers_first(updates):
    """Returns the runs of updates in the order in which their gradients are known. Biases follow, because their passes do not use
    the vector port while it is busy with stores."""
    parameters = []
    for run in updates:
        if isinstance(run[0], MatrixSum) and any(one.kind != "diagonal" for one in run[0].products) or not parameters:
            parameters.append([])
        parameters[-1].append(run)
    ordered = sorted(reversed(parameters), key=lambda runs: runs[0][0].shape.form == "vector")
    return [run for runs in ordered for run in runs]


def is_update(run):
    """Returns True if a run updates a parameter."""
    one = run[0]
    is_exchange = isinstance(one, (AllReduce, ReduceScatter))
    return is_exchange or isinstance(one, MatrixSum) and one.shape.form != "samples" and not one.is_image


def in_turns(sums):
    """Returns the sums in an order in which each is, if possible, some sums after those whose results it reads. Sums with the
    same function by table follow each other."""
    dependencies, places, left, order, selected = dependencies_of(sums), {}, list(range(len(sums))), [], None

    def wait(number):
        """Returns a key that is least for the sum that is best taken next."""
        last = max((places[other] for other in dependencies[number][0]), default=-_LAG)
        table = table_of_sum(sums[number])
        return table not in (None, selected), max(0, last + _LAG - len(order)), number

    while left:
        ready = [one for one in left[:_WINDOW] if all(places.keys() >= some for some in dependencies[one])]
        number = min(ready, key=wait)
        left.remove(number)
        places[number] = len(order)
        order.append(sums[number])
        selected = table_of_sum(sums[number]) or selected
    return order

"""The order of the jobs of a step. Sums that do not depend on each other alternate, so that the units overlap.

The updates of a parameter are a run: a gradient, and sums that read the results of sums before them in the same rows. The jobs of
all runs form a pipeline: when the gradient of a job is computed, the next sum takes the job before it.
"""

from collections import Counter
from itertools import product, repeat

from .chunks import in_time
from .ring import AllReduce
from .sums import MatrixSum

__all__ = ["in_turns", "is_update", "runs_of", "weaves", "woven"]

_WINDOW = 32  # sums among which the next one is chosen
_IN_FLIGHT = 3  # jobs of updates in flight
_LAG = 4  # sums from a sum to its reader, if possible


def _accesses(one, chunks=(0,)):
    """Returns the matrices that a sum reads and writes, by address and by first row of each chunk of the batch."""

    def places(matrix):
        first = {one.span[0]} if getattr(one, "span", None) and matrix.form == "samples" else chunks
        return {(matrix.region, matrix.vector, row) for row in first}

    return [set().union(*map(places, some)) for some in (one.reads, one.writes)]


def _dependencies(sums):
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
    if not (isinstance(one, MatrixSum) and isinstance(run[0], MatrixSum)) or one.shape.form == "samples":
        return False
    shape = (run[0].shape.form, run[0].shape.rows, run[0].shape.channels)
    written = {place for other in run for place in _accesses(other)[1]}
    return (
        shape == (one.shape.form, one.shape.rows, one.shape.channels)
        and all(some.kind == "diagonal" for some in one.products)
        and bool(written & _accesses(one)[0])
    )


def weaves(sums):
    """Returns True if updates can be emitted between sums of samples. Updates with functions by table, or of several steps,
    follow all sums of samples."""
    updates = [one for run in runs_of(sums) if is_update(run) for one in run if isinstance(one, MatrixSum)]
    return not any(_table(one) or one.steps > 1 for one in updates)


def woven(sums, jobs, config):
    """Yields `(sum, job)` in the order in which the jobs of a step are emitted, once for each step of the job.

    Parameters
    ----------
    sums : list of MatrixSum, Expansion or AllReduce
    jobs : callable
        Returns the list of the jobs of a run.
    config : Config
    """
    runs = runs_of(sums)
    updates = _last_layers_first([run for run in runs if is_update(run)])
    main = _main([one for run in runs if not is_update(run) for one in run], jobs, config)
    left = Counter(id(one) for one, _ in main)
    depth, items, begun, done = max((len(_steps(run)) for run in updates), default=0), [], 0, set()
    ways, early = min(depth, _IN_FLIGHT), weaves(sums)
    dependencies = dict(zip(map(id, sums), _dependencies(sums)))
    numbers = {id(one): number for number, one in enumerate(sums)}

    def is_ready(run):
        own = {numbers[id(one)] for one in run}
        return all(read | before <= done | own for read, before in (dependencies[id(one)] for one in run))

    def advanced(steps):
        """Yields the jobs of the next steps of the pipeline."""
        nonlocal begun
        share = -(-depth // max(ways, 1))
        for _ in range(steps):
            for first, place in product(range(share), range(ways)):
                if 0 <= begun - place < len(items):
                    run, job = items[begun - place]
                    yield from ((one, job) for one in _steps(run)[first + place * share :][:1])
            begun += 1

    for one, job in main:
        yield from repeat((one, job), getattr(one, "steps", 1))
        left[id(one)] -= 1
        if left[id(one)]:
            continue
        done.add(numbers[id(one)])
        ready = []
        for run in updates:
            if early and is_ready(run):
                ready.append(run)
                done |= {numbers[id(one)] for one in run if len(run) == 1}  # its jobs precede those of the next runs
        items += [(run, job) for run in ready for job in jobs(run)]
        updates = [run for run in updates if run not in ready]
        steps = (len(items) - begun) // len(+left + Counter([None]))
        while steps and begun + steps < len(items) and items[begun + steps][0] is items[begun + steps - 1][0]:
            steps += 1  # jobs of a sum share transposed operands
        yield from advanced(steps)
    items += [(run, job) for run in updates for job in jobs(run)]
    yield from advanced(len(items) - begun + depth)


def _main(sums, jobs, config):
    """Returns the jobs of the sums of samples, `(sum, job)`, in order."""
    if not any(getattr(one, "span", None) for one in sums):
        return [(one, job) for one in in_turns(sums) for job in jobs([one])]
    dependencies = [read | before for read, before in _dependencies(sums)]
    return [(sums[number], job) for number, job in in_time([(one, jobs([one])) for one in sums], dependencies, config)]


def _last_layers_first(updates):
    """Returns the runs of updates in the order in which their gradients are known. Biases follow, because their passes do not use
    the vector port while it is busy with stores."""
    parameters = []
    for run in updates:
        if isinstance(run[0], MatrixSum) and any(one.kind != "diagonal" for one in run[0].products) or not parameters:
            parameters.append([])
        parameters[-1].append(run)
    ordered = sorted(reversed(parameters), key=lambda runs: runs[0][0].shape.form == "vector")
    return [run for runs in ordered for run in runs]


def _steps(run):
    """Returns the sum of each step of a run's jobs."""
    return [one for one in run for _ in range(getattr(one, "steps", 1))]


def is_update(run):
    """Returns True if a run updates a parameter."""
    return isinstance(run[0], AllReduce) or isinstance(run[0], MatrixSum) and run[0].shape.form != "samples"


def _table(one):
    if not isinstance(one, MatrixSum):
        return None
    return next((result.function.key for result in one.results if result.function.is_table), None)


def in_turns(sums):
    """Returns the sums in an order in which each is, if possible, some sums after those whose results it reads. Sums with the
    same function by table follow each other."""
    dependencies, places, left, order, selected = _dependencies(sums), {}, list(range(len(sums))), [], None

    def wait(number):
        """Returns a key that is least for the sum that is best taken next."""
        last = max((places[other] for other in dependencies[number][0]), default=-_LAG)
        table = _table(sums[number])
        return table not in (None, selected), max(0, last + _LAG - len(order)), number

    while left:
        ready = [one for one in left[:_WINDOW] if all(places.keys() >= some for some in dependencies[one])]
        number = min(ready, key=wait)
        left.remove(number)
        places[number] = len(order)
        order.append(sums[number])
        selected = _table(sums[number]) or selected
    return order

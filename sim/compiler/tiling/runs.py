"""Runs of sums, and the order in which sums can be computed.

The updates of a parameter are a run: a gradient, and sums that read the results of sums before them in the same rows.
"""

from ..lowering.ring import AllReduce, ReduceScatter
from ..lowering.sums import Expansion, MatrixSum

__all__ = ["Completed", "dependencies_of", "runs_of", "updates_of", "weaves"]


def _accesses(one, chunks=(0,)):
    """Returns the matrices that a sum reads and writes, by address and by first row of each chunk of the batch."""

    def places(matrix):
        first = {one.span[0]} if one.span and matrix.form == "samples" else chunks
        return {(matrix.region, matrix.vector, row) for row in first}

    return [set().union(*map(places, some)) for some in (one.reads, one.writes)]


def dependencies_of(sums):
    """Returns, for each sum, the numbers of the sums whose results it reads, and of those that must precede it for another
    reason."""
    writers, readers, found = {}, {}, []
    chunks = {one.span[0] for one in sums if one.span} or {0}
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
    if not isinstance(one, MatrixSum) or isinstance(last, (AllReduce, Expansion)) or not one.is_update or run[0].is_image:
        return False
    shape = last.made if isinstance(last, ReduceScatter) else last.shape
    return (
        (shape.form, shape.rows, shape.channels) == (one.shape.form, one.shape.rows, one.shape.channels)
        and all(some.kind == "diagonal" for some in one.products)
        and bool(written & _accesses(one)[0])
    )


def weaves(sums):
    """Returns True if updates can be emitted between sums of samples. Updates with functions by table, or of several steps,
    follow all sums of samples."""
    return not any(one.table or one.steps > 1 for run in runs_of(sums) if run[0].is_update for one in run)


def updates_of(runs):
    """Returns the runs of updates among all runs, in the order in which their gradients are known. Biases follow, because their
    passes do not use the vector port while it is busy with stores."""
    parameters = []
    for run in (run for run in runs if run[0].is_update):
        if any(one.kind != "diagonal" for one in run[0].products) or not parameters:
            parameters.append([])
        parameters[-1].append(run)
    ordered = sorted(reversed(parameters), key=lambda runs: runs[0][0].shape.form == "vector")
    return [run for runs in ordered for run in runs]


class Completed:
    """The sums that are complete.

    Members
    -------
    before : list of (set of int, set of int)
        See :func:`dependencies_of`.
    done : set of int
        Numbers of the sums that are complete.
    """

    def __init__(self, sums):
        self.before, self.done = dependencies_of(sums), set()
        self._numbers = {id(one): number for number, one in enumerate(sums)}

    def numbers(self, run):
        return {self._numbers[id(one)] for one in run}

    def finish(self, run):
        self.done |= self.numbers(run)

    def is_ready(self, run, missing=()):
        """Returns True if all sums that precede a run, except `missing`, are complete."""
        known = self.done | self.numbers([*run, *missing])
        return all(set.union(*self.before[number]) <= known for number in self.numbers(run))

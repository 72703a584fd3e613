"""The order of jobs.

A job can start when the samples that it reads are computed. So a layer works on a sample while the layers before it work on
later samples. Estimates of array, activation unit and accumulators decide which job is next. Between the jobs of samples, there
are jobs of updates.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..lowering.ring import AllReduce, ReduceScatter
from ..memory.memories import Ring
from ..tiling.runs import Completed, dependencies_of, runs_of, updates_of, weaves
from ..timing.estimates import array_cycles, is_array_busier, results_cycles, whole_cycles
from ..timing.units import turnaround
from ..tuning import LAYER_LATENCY, TOLERATED, WINDOW_PART, WORTH
from .pipeline import Pipeline

__all__ = ["Pace", "reads_windows"]


def reads_windows(sums):
    """Returns True if sums read windows. Jobs then have whole samples, or parts of one sample."""
    return any(product.has_lines for one in sums for product in one.products)


class Pace:
    """The order of the jobs of one step. `writer` plans and writes them.

    Members
    -------
    beside, updates : list of runs
        Runs that have not begun: updates that may begin before the last jobs of samples, and all updates.
    pipeline : Pipeline
        Jobs of updates.
    rest, later : int
        Cycles of the array in jobs of samples that are left, and in updates that have not begun.
    divides : bool
        Updates have memories of their own, because jobs of windows need much of the memories.
    exchanges : bool
        Cores of a ring exchange gradients.
    """

    def __init__(self, sums, writer, config):
        self.writer, self.config, self.completed = writer, config, Completed(sums)
        runs, self.divides = runs_of(sums), reads_windows(sums)
        self.exchanges = any(isinstance(one, (AllReduce, ReduceScatter)) for one in sums)
        self.updates = updates_of(runs)
        main = [one for run in runs if not run[0].is_update for one in run]
        self.beside = [run for run in self.updates if not self._fills_array(run)]
        self.weaving = bool(self.updates) and weaves(sums) and (not self.divides or writer.divide(self.beside, main))
        before = [read | other for read, other in dependencies_of(main)]
        self.order = _by_samples(main, writer.jobs, before, config, writer.memories)
        self.rest = sum(array_cycles(one, job, config) for one, job, *_ in self.order)
        self.later = whole_cycles(array_cycles, sum(self.updates, []), config)
        self.pipeline = Pipeline(self.updates, config)

    def items(self):
        """Yields `(sum, job)` in the order in which jobs are emitted, once for each step of a job."""
        for one, job, wait, is_last in self.order:
            if wait > WORTH:
                yield from self.pipeline.advanced(self.pipeline.during(wait))
            yield one, job
            left = array_cycles(one, job, self.config)
            while self.writer.is_open(one, job):
                self._pass(WINDOW_PART)
                left -= WINDOW_PART
                yield from self.pipeline.advanced(self.pipeline.due_steps())
                yield one, job
            self._pass(left)
            if is_last:
                self.completed.finish([one])
            if self.weaving:
                self._begin_ready()
        yield from self._last()

    def _jobs(self, runs):
        return [(run, job) for run in runs for job in self.writer.jobs(run)]

    def _pass(self, cycles):
        self.pipeline.beside(max(0, cycles), self.rest + self.later)
        self.rest -= cycles

    def _begin_ready(self):
        updates = [run for run in self.beside if self.completed.is_ready(run) and self._whole(run) <= self.rest]
        if updates and self.divides and not self.pipeline.items:
            self.writer.memories.enter("beside")
        self.pipeline.items += self._jobs(updates)
        self.later -= sum(map(self._whole, updates))
        self.beside, self.updates = ([run for run in some if run not in updates] for some in (self.beside, self.updates))

    def _whole(self, run):
        return whole_cycles(array_cycles, run, self.config)

    def _fills_array(self, run):
        """Returns True if the gradient of weights takes the array longer than their update takes the vector port. Beside other
        jobs, such an update would have less memory, but fill no gap of the array."""
        is_heavy = self.divides and is_array_busier(run, self.config)
        return is_heavy and any(one.kind == "matrix" for one in run[0].products)

    def _last(self):
        heavy = [run for run in self.updates if self._fills_array(run) and run[0].shape.rows >= 2 * self.config.n]
        if self.weaving and heavy and not self.exchanges:
            yield from self._together(heavy, [run for run in self.updates if run not in heavy])
            return
        if self.weaving and self.divides:
            self.writer.memories.enter("updates")
        self.pipeline.items += self._jobs(self.updates)
        yield from self._pieces(self.pipeline)

    def _together(self, heavy, others):
        """Yields the jobs of updates that fill the array, piece by piece. Between the pieces, yields the jobs of other updates,
        which leave the array idle: jobs in the pipeline, and jobs of `others`."""
        writer, config, main = self.writer, self.config, Pipeline(heavy, self.config)
        writer.begin_pieces(heavy)
        main.items += self._jobs(heavy)
        self.pipeline.items += self._jobs(others)
        jobs = [(one, job) for run, job in self.pipeline.left for one in run]
        whole = sum(array_cycles(one, job, config) + results_cycles(one, job, config) for one, job in jobs)
        total, due, beside = sum(map(self._whole, heavy)), 0, self._pieces(self.pipeline)
        for item in self._pieces(main):
            begun = writer.worked
            yield item
            due += (writer.worked - begun) * whole / total
            while due > 0 and (other := next(beside, None)):
                begun, (one, job) = writer.worked, other
                yield one, job
                due -= writer.worked - begun + (0 if writer.is_within(one, job) else results_cycles(one, job, config))
        yield from beside

    def _pieces(self, pipeline):
        for one, job in pipeline.rest():
            yield one, job
            while self.writer.is_within(one, job):
                yield one, job


@dataclass
class _Layer:
    """The jobs of one sum that are left.

    Members
    -------
    ends : list of int
        Time at which the results of each sample have been stored, for the samples that are complete.
    read : deque of int
        Times at which the accumulators of the last two jobs have been read. The next job waits for one, so that other layers find
        accumulators.
    """

    sums: Any
    jobs: deque
    sources: list
    ends: list = field(default_factory=list)
    read: deque = field(default_factory=lambda: deque([0, 0], maxlen=2))

    def samples(self, row):
        """Returns the number of samples that end before a row. Rows after the last sample are padding."""
        geometry, first = self.sums.shape.geometry, self.sums.rows.start
        return (geometry.batch if row >= geometry.batch * geometry.period else row // geometry.period) - first // geometry.period

    def finish(self, job, time):
        """Records the results of a job. The job with the last column tiles completes the samples that end in its rows."""
        row, rows, column, columns = job
        if column + columns == self.sums.shape.tiles:
            self.ends += [time] * (self.samples(row + rows) - len(self.ends))


class _Clock:
    """Estimated times at which the units are free.

    Members
    -------
    flight : list of (int, int, int)
        First and last rows of accumulators of each job, and the time at which its results have been read.
    """

    def __init__(self, config, rows):
        self.config, self.ring, self.array, self.results, self.flight = config, Ring(0, rows), 0, 0, []

    def room(self, needed):
        """Returns the time at which the next `needed` rows of accumulators are free."""
        first = self.ring.following(needed)
        return max((end for low, high, end in self.flight if low < first + needed and first < high), default=0)

    def run(self, one, job, start):
        """Records a job that starts in cycle `start`. Returns the time at which other jobs can read its results."""
        needed = job[1] * job[3]
        self.array = start + array_cycles(one, job, self.config)
        self.results = max(self.results, self.array + turnaround(self.config)) + results_cycles(one, job, self.config)
        first = self.ring.take(min(needed, self.ring.size))
        self.flight = [*(one for one in self.flight if one[-1] > start), (first, first + needed, self.results)]
        return self.results + LAYER_LATENCY


def _by_samples(sums, jobs, dependencies, config, memories):
    """Returns `(sum, job, cycles that the array waits before it, True for the last job of the sum)`, in an order in which the
    array waits little. Of the jobs that can start, a job of the earliest sum is next. In the phase "samples" of the memories, and
    in chunks of the batch, it is a job of the earliest samples. `jobs` returns the jobs of a list with one sum. `dependencies`
    are the numbers of the sums that must precede each sum."""
    layers = [_Layer(one, deque(jobs([one])), sorted(before)) for one, before in zip(sums, dependencies)]
    clock, order, left, selected = _Clock(config, memories.sums.size), [], list(range(len(layers))), None

    def start(layer):
        """Returns the time at which the next job of a layer can start, or None if a job that it needs is not in the order."""
        job, time = layer.jobs[0], 0
        for other in (layers[number] for number in layer.sources):
            if not layer.sums.has_samples or not other.sums.has_samples:
                if other.jobs:
                    return None
                time = max(time, *other.ends[-1:], 0)
                continue
            samples = -(-(job[0] + job[1]) // layer.sums.shape.geometry.period)
            end = other.samples(samples * other.sums.shape.geometry.period)
            if len(other.ends) < end:
                return None
            time = max(time, *other.ends[max(0, end - 1) : end], 0)
        return max(time, layer.read[0], clock.room(job[1] * job[3]) if job else 0)

    def wait(number):
        """Returns a key that is least for the layer whose job is next. A function table is not loaded for each job."""
        one, time = layers[number], max(0, times[number] - clock.array - TOLERATED)
        if memories.phase == "samples" or one.sums.span:
            return time, (one.jobs[0] or [0])[0], number
        return one.sums.table not in (None, selected), time, number

    while left:
        times = {number: time for number in left if (time := start(layers[number])) is not None}
        number = min(times, key=wait)
        layer = layers[number]
        selected = layer.sums.table or selected
        job = layer.jobs.popleft()
        time = max(clock.array, times[number])
        order.append((layer.sums, job, time - clock.array, not layer.jobs))
        if job:
            end = clock.run(layer.sums, job, time)
            layer.finish(job, end)
            layer.read.append(clock.results)
        if not layer.jobs:
            left.remove(number)
    return order

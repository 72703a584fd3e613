"""The order of jobs in a step of convolutions: a job can start when the samples that it reads are computed. So a layer works on a
sample while the layers before it work on later samples. Estimates of array, activation unit and accumulators decide which job is
next.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

from ..timing.model import turnaround
from .sums import MatrixSum

__all__ = ["array_cycles", "by_samples", "is_array_busier", "results_cycles", "table_of_sum"]

_LATENCY = 120  # cycles from the last result of a job to a job that reads its results
_TOLERATED = 32  # cycles that the array waits for a job of an earlier layer
_PER_ROW = {"plain": 1, "wide": 2, "pool": 1, "beside": 2}  # cycles of the activation unit for each row of a result


def array_cycles(one, job, config):
    """Returns an estimate of the cycles of the array in a job."""
    _, rows, _, columns = job
    return sum(product.inputs for product in one.products) * columns * max(rows, config.n)


def results_cycles(one, job, config):
    """Returns an estimate of the cycles in which the vector port is busy with a job's results, and with their STOREs."""
    _, rows, _, columns = job
    cycles = 0
    for result in getattr(one, "results", ()):
        height, width = result.spread or (1, 1)
        made = rows * height * width
        if result.pool:
            made = rows // (result.pool.window[0] * result.pool.window[1])
            cycles += columns * (rows + made)
        elif result.softmax:
            fields = {"rows": rows, "tiles": columns, "lanes": one.shape.lanes(one.shape.tiles - 1)}
            cycles += result_cycles(config, Opcode.SOFTMAX, fields)[0] + rows * columns
        else:
            kind = "wide" if result.matrix.wide else "beside" if result.beside else "plain"
            cycles += columns * (_PER_ROW[kind] + result.matrix.halves) * made
        if result.function.is_table:
            cycles += columns * rows * (config.n // config.table_lanes - 1)
    return cycles


def is_array_busier(sums, config):
    """Returns True if sums take the array longer than their results take the vector port."""
    jobs = [(one, (0, one.shape.rows, 0, one.shape.tiles)) for one in sums]
    array, results = (sum(cycles(*job, config) for job in jobs) for cycles in (array_cycles, results_cycles))
    return array > results


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

    def samples(self, job):
        """Returns the numbers of the first sample and of the sample after the last, of a job."""
        period = self.sums.shape.geometry.period
        return job[0] // period, -(-(job[0] + job[1]) // period)

    def finish(self, job, time):
        """Records the results of a job. The job with the last column tiles completes the samples that end in its rows."""
        geometry, (row, rows, column, columns) = self.sums.shape.geometry, job
        if column + columns == self.sums.shape.tiles:
            whole = geometry.batch if row + rows >= geometry.batch * geometry.period else (row + rows) // geometry.period
            self.ends += [time] * (whole - len(self.ends))


class _Clock:
    """Estimated times at which the units are free."""

    def __init__(self, config, rows):
        self.config, self.rows = config, rows
        self.array = self.results = self.held = 0
        self.flight = deque()  # accumulators' rows of each job, and the time at which its results have been read

    def room(self, needed):
        """Returns the time from which the accumulators have room for `needed` rows."""
        held, time = self.held + needed, 0
        for rows, end in self.flight:
            if held <= self.rows:
                break
            held, time = held - rows, end
        return time

    def run(self, one, job, start):
        """Records a job that starts in cycle `start`. Returns the time at which other jobs can read its results."""
        needed = job[1] * job[3]
        while self.flight and self.held + needed > self.rows:
            self.held -= self.flight.popleft()[0]
        self.array = start + array_cycles(one, job, self.config)
        self.results = max(self.results, self.array + turnaround(self.config)) + results_cycles(one, job, self.config)
        self.flight.append((needed, self.results))
        self.held += needed
        return self.results + _LATENCY


def by_samples(sums, jobs, dependencies, config, rows):
    """Returns `(sum, job, cycles that the array waits before it, True for the last job of the sum)`, in an order in which the
    array waits little. Of the jobs that can start, a job of the earliest sum is next.

    Parameters
    ----------
    sums : list of MatrixSum or Expansion
        In an order in which they can be computed.
    jobs : callable
        Returns the jobs of a list with one sum.
    dependencies : list of set of int
        For each sum, the numbers of the sums that must precede.
    rows : int
        Rows of the accumulators.
    """
    layers = [_Layer(one, deque(jobs([one])), sorted(before)) for one, before in zip(sums, dependencies)]
    clock, order, left, selected = _Clock(config, rows), [], list(range(len(layers))), None

    def start(layer):
        """Returns the time at which the next job of a layer can start, or None if a job that it needs is not in the order."""
        job, time = layer.jobs[0], 0
        for other in (layers[number] for number in layer.sources):
            if not _has_samples(layer.sums) or not _has_samples(other.sums):
                if other.jobs:
                    return None
                time = max(time, *other.ends[-1:], 0)
                continue
            end = min(layer.samples(job)[1], other.sums.shape.geometry.batch)
            if len(other.ends) < end:
                return None
            time = max(time, other.ends[end - 1])
        return max(time, layer.read[0], clock.room(job[1] * job[3]) if job else 0)

    def wait(number):
        """Returns a key that is least for the layer whose job is next. A function table is not loaded for each job."""
        loads = table_of_sum(layers[number].sums) not in (None, selected)
        return loads, max(0, times[number] - clock.array - _TOLERATED), number

    while left:
        times = {number: time for number in left if (time := start(layers[number])) is not None}
        number = min(times, key=wait)
        layer = layers[number]
        selected = table_of_sum(layer.sums) or selected
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


def table_of_sum(one):
    """Returns the key of the function by table of a sum's results, or None."""
    return next((result.function.key for result in getattr(one, "results", ()) if result.function.is_table), None)


def _has_samples(one):
    return isinstance(one, MatrixSum) and one.shape.form == "samples"

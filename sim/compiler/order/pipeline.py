"""The pipeline of updates: when the gradient of a job is computed, the next sum takes the job before it."""

from itertools import accumulate, product

from ..lowering.ring import ReduceScatter
from ..timing.estimates import array_cycles
from ..tuning import UPDATE_JOBS

__all__ = ["Pipeline"]


class Pipeline:
    """Jobs of the updates of all `runs`. Several are in flight.

    Members
    -------
    items : list of (run, job)
    begun : int
        Number of items that have begun.
    due : float
        Cycles of items that should have begun beside other jobs, but have not.
    """

    def __init__(self, runs, config):
        self.config, self.depth = config, max((len(_steps(run)) for run in runs), default=0)
        exchanges = any(isinstance(one, ReduceScatter) for run in runs for one in run[1:])
        self.ways = self.depth if exchanges else min(self.depth, UPDATE_JOBS)
        self.items, self.begun, self.due = [], 0, 0

    @property
    def left(self):
        """Returns the items that have not begun."""
        return self.items[self.begun :]

    def during(self, cycles):
        """Returns the number of steps that keep the array busy for `cycles` cycles."""
        ends = accumulate(map(self._cycles, self.left), initial=0)
        return min(sum(end < cycles for end in ends), len(self.left))

    def beside(self, cycles, left):
        """Adds the share of the items that should begin beside `cycles` of the `left` cycles of other jobs."""
        total = sum(map(self._cycles, self.left))
        self.due += max(0, total - self.due) * min(1, cycles / max(1, left))

    def due_steps(self):
        """Returns the number of steps that are due."""
        count = self.during(self.due)
        self.due -= sum(map(self._cycles, self.left[:count]))
        return count

    def advanced(self, steps):
        """Yields `(sum, job)` of the next steps."""
        share = -(-self.depth // max(self.ways, 1))
        for _ in range(steps):
            for first, place in product(range(share), range(self.ways)):
                if 0 <= self.begun - place < len(self.items):
                    run, job = self.items[self.begun - place]
                    yield from ((one, job) for one in _steps(run)[first + place * share :][:1])
            self.begun += 1

    def rest(self):
        """Yields `(sum, job)` of all steps that are left."""
        yield from self.advanced(len(self.left) + self.depth)

    def _cycles(self, item):
        run, job = item
        return sum(array_cycles(one, job, self.config) for one in run)


def _steps(run):
    return [one for one in run for _ in range(one.steps)]

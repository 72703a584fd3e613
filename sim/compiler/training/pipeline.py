"""The pipeline of updates: when the gradient of a job is computed, the next sum takes the job before it."""

from itertools import accumulate, product

from .pacing import array_cycles
from .ring import AllReduce, ReduceScatter
from .sums import MatrixSum

__all__ = ["Pipeline"]

_IN_FLIGHT = 3  # jobs of updates in flight; one for each step if the cores of a ring exchange gradients between


class Pipeline:
    """Jobs of updates. Several are in flight.

    Parameters
    ----------
    updates : list of list of MatrixSum or AllReduce
        All runs of updates.

    Members
    -------
    items : list of (run, job)
    begun : int
        Number of items that have begun.
    due : float
        Cycles of items that should have begun beside other jobs, but have not.
    """

    def __init__(self, updates):
        self.depth = max((len(_steps(run)) for run in updates), default=0)
        exchanges = any(isinstance(one, ReduceScatter) for run in updates for one in run[1:])
        self.ways = self.depth if exchanges else min(self.depth, _IN_FLIGHT)
        self.items, self.begun, self.due = [], 0, 0

    def steps(self, parts):
        """Returns one of `parts` parts of the steps that are left."""
        count, items = (len(self.items) - self.begun) // parts, self.items[self.begun :]
        while count and count < len(items) and items[count][0] is items[count - 1][0]:
            count += 1  # jobs of a sum share transposed operands
        return count

    def during(self, cycles, config):
        """Returns the number of steps that keep the array busy for `cycles` cycles."""
        count = 0
        while cycles > 0 and self.begun + count < len(self.items):
            cycles -= _cycles(self.items[self.begun + count], config)
            count += 1
        return count

    def beside(self, cycles, left, config):
        """Adds the share of the items that should begin beside `cycles` of the `left` cycles of other jobs."""
        total = sum(_cycles(self.items[number], config) for number in range(self.begun, len(self.items)))
        self.due += max(0, total - self.due) * min(1, cycles / max(1, left))

    def due_steps(self, config):
        """Returns the number of steps that are due."""
        count = 0
        while self.begun + count < len(self.items) and self.due > 0:
            self.due -= _cycles(self.items[self.begun + count], config)
            count += 1
        return count

    def add(self, runs, config):
        """Adds runs with their jobs, `(run, jobs)`, between the items that have not begun. On a ring, some of these items precede
        others, so they keep their order."""
        if any(isinstance(run[0], AllReduce) for run, _ in [*self.items, *runs]):
            self.items += [(run, job) for run, jobs in runs for job in jobs]
            return
        items = [(run, job) for run, jobs in runs for job in jobs]
        both = [_placed(self.items[self.begun :], config), _placed(items, config)]
        self.items[self.begun :] = [item for *_, item in sorted((one for some in both for one in some), key=lambda one: one[0])]

    def advanced(self, steps):
        """Yields `(sum, job)` of the next steps."""
        share = -(-self.depth // max(self.ways, 1))
        for _ in range(steps):
            for first, place in product(range(share), range(self.ways)):
                if 0 <= self.begun - place < len(self.items):
                    run, job = self.items[self.begun - place]
                    yield from ((one, job) for one in _steps(run)[first + place * share :][:1])
            self.begun += 1


def _steps(run):
    """Returns the sum of each step of a run's jobs."""
    return [one for one in run for _ in range(getattr(one, "steps", 1))]


def _cycles(item, config):
    run, job = item
    return sum(array_cycles(one, job, config) for one in run if isinstance(one, MatrixSum)) if job else 0


def _placed(items, config):
    """Returns `(share of the cycles before the item, item)` of each item."""
    ends = [*accumulate((_cycles(item, config) for item in items), initial=0)]
    return [(end / max(1, ends[-1]), item) for end, item in zip(ends, items)]

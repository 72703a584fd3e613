"""Writing of jobs: the plans of sums, and jobs whose instructions are emitted in several steps."""

from contextlib import suppress
from itertools import zip_longest

from ..errors import CompileError
from ..lowering.ring import AllReduce, ReduceScatter
from ..lowering.sums import Expansion, MatrixSum
from ..tiling.job_sizes import plan_run
from ..tiling.runs import runs_of, weaves
from ..tuning import LEAST_ROWS
from .jobs import PIECE, SumCode, expand
from .ring_jobs import Bucket, reduce_all, reduce_scatter

__all__ = ["JobWriter"]


class JobWriter:
    """Emits jobs in the order of :mod:`sim.compiler.order.ordering`."""

    def __init__(self, emitter, sums):
        self.emitter, self.memories, self.sums, self.divides = emitter, emitter.memories, sums, not weaves(sums)
        tiles = max((product.inputs for one in sums if one.is_update for product in one.products), default=0)
        self.rows = LEAST_ROWS * tiles  # of the operands of a gradient
        self.plans, self.begun = {}, {}
        self.in_pieces, self.within = False, set()
        self.exchanges, self.buckets = _exchanges(sums), {}
        self.updates = {id(one) for run in runs_of(sums) if run[0].is_update for one in run}

    def jobs(self, run):
        """Returns the jobs of a run, whose sums all have the same jobs."""
        if self.divides and run[0].is_update:
            if self.emitter.gatherer:
                self.emitter.gatherer.finish()
            self.memories.enter("steps", needed=self.rows)
            self.divides = False
        if not isinstance(run[0], (MatrixSum, ReduceScatter)):
            return [None]
        if id(run[0]) not in self.plans:
            self.memories.choose_side(id(run[0]) in self.updates)
            plan = plan_run(run, self.memories)
            self.plans.update({id(one): plan for one in run})
        return [*self.plans[id(run[0])].jobs(run[0])]

    def described(self):
        """Returns {name of a sum: description of its jobs}."""
        found = {}
        for one in self.sums:
            if isinstance(one, MatrixSum) and (plan := self.plans.get(id(one))):
                count = len([*plan.jobs(one)])
                rows, columns = min(plan.rows, len(one.rows)), plan.columns
                found[one.name] = f"{count} x {rows} rows, {columns} column tile{'s' * (columns > 1)}"
        return found

    def is_open(self, one, job):
        """Returns True if a job has begun and is not complete."""
        return (id(one), job) in self.begun

    def divide(self, updates, others):
        """Divides the memories between `updates`, runs of sums, and `others`. Returns False if they do not fit then."""
        self.updates |= {id(one) for run in updates for one in run}
        self.memories.enter("sides")
        self.memories.choose_side(True)
        with suppress(CompileError):
            for run in updates:
                if isinstance(run[0], (MatrixSum, ReduceScatter)):
                    plan_run(run, self.memories)
            self.memories.choose_side(False)
            jobs = [job for one in others for job in self.jobs([one]) if job]
            if all(rows * columns <= self.memories.lasting_rows for _, rows, _, columns in jobs):
                return True
        self.plans.clear()
        self.memories.enter("updates")
        return False

    def begin_pieces(self, runs):
        """Makes each call of :meth:`write` emit one piece of a step. `runs` of updates then have the memories of jobs of samples,
        which are complete."""
        self.in_pieces = True
        self.updates -= {id(one) for run in runs for one in run}
        self.memories.enter("beside")

    @property
    def worked(self):
        """Returns the cycles of the array in all passes so far."""
        return sum(self.emitter.worked.values())

    def is_within(self, one, job):
        """Returns True if a step of a job has begun and is not complete."""
        return (id(one), job) in self.within

    def write(self, one, job):
        """Emits the next step of a job, or the next piece of a step after :meth:`begin_pieces`."""
        key = id(one), job
        self.memories.choose_side(id(one) in self.updates)
        self.emitter.stage = one.name
        if isinstance(one, ReduceScatter):
            self.emitter.gatherer.finish()
            reduce_scatter(self.emitter, one, job, self.buckets.pop((id(one), job), None))
            return
        if not isinstance(one, MatrixSum):
            {Expansion: expand, AllReduce: reduce_all}[type(one)](self.emitter, one)
            return
        steps = self.begun.pop(key, None) or self._steps(one, job)
        made = next(steps, None)
        self.within.discard(key)
        if made is not None:
            self.begun[key] = steps
            self.within |= {key} if made == (PIECE,) else set()

    def _steps(self, one, job):
        """Returns the generator of the steps of a job. A gradient that is exchanged between cores is computed in parts."""
        plan, take = self.plans[id(one)], None
        row, rows, column, columns = job
        rows = min(rows, one.shape.rows - row)  # on a ring, updates have the rows of a core's segment
        part, end = columns, column + columns
        if exchange := self.exchanges.get(id(one)):
            bucket = self.buckets[id(exchange), job] = Bucket(self.emitter, exchange, job)
            take, part = bucket.take, plan.part
        jobs = [(row, rows, first, min(part, end - first)) for first in range(column, end, part)]
        steps = (SumCode(self.emitter, one, plan, take).steps(*some) for some in jobs)
        return zip_longest(*(steps if self.in_pieces else (filter(lambda made: made is not PIECE, some) for some in steps)))


def _exchanges(sums):
    """Returns {id of the sum of a gradient: :class:`ReduceScatter` of its jobs}."""
    pairs = (run[:2] for run in runs_of(sums) if len(run) > 1)
    return {id(one): exchange for one, exchange in pairs if isinstance(exchange, ReduceScatter)}

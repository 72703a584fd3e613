"""The decisions of a search, without the graph: enough to emit the same instructions again without search or simulation."""

from dataclasses import asdict, dataclass, replace

import numpy as np

from .memory.batching import lay_along_x
from .memory.layout import lay_out
from .passes.im2col import fold
from .search import Candidate, Choice
from .tiling.chunk_tiling import RunPlan
from .tiling.stage_tiling import StagePlan

__all__ = ["Decision", "decision_of"]


@dataclass(frozen=True, eq=False)
class Decision:
    """The decisions of one search.

    Parameters
    ----------
    way : int
        Index of the graph's variant among the variants that the compiler derives.
    rows : int
        Samples per chunk.
    runs : tuple of RunPlan
    order : int32 array
        Indices of the candidate's instructions, in the program's order.
    """

    way: int
    rows: int
    runs: tuple
    order: np.ndarray

    def choice(self, graph, way, config, batch):
        """Returns the :class:`Choice` for a graph and its variant `way`, as `(tensors, stages)`."""
        tensors, stages = way
        stages, gathers = fold(replace(graph, stages=stages), config.n)
        batched = lay_along_x(graph, stages, gathers, batch, self.rows, tensors=tensors)
        homes = {name for run in self.runs for name in run.homes}
        return Choice(batched, lay_out(batched, config.n, homes), self.runs)

    def emit(self, choice, config):
        """Returns the program's instructions."""
        ops = Candidate(choice, self.runs, config).ops
        return [ops[number] for number in self.order]

    def plain(self):
        """Returns the decision without `order`, as values that JSON can store."""
        runs = [asdict(run) | {"stages": [run.stages.start, run.stages.stop]} for run in self.runs]
        return {"way": self.way, "rows": self.rows, "runs": runs}

    @classmethod
    def of_plain(cls, plain, order):
        """Returns the decision that :meth:`plain` converted."""
        return cls(plain["way"], plain["rows"], tuple(map(_run_of, plain["runs"])), order)


def decision_of(way, choice, schedule):
    """Returns the :class:`Decision` that reproduces a :class:`Choice` and its :class:`Schedule`, for variant `way`."""
    number = {id(op): index for index, op in enumerate(schedule.candidate.ops)}
    order = np.fromiter((number[id(op)] for op in schedule.ops), np.int32, len(schedule.ops))
    return Decision(way, choice.batched.rows, choice.runs, order)


def _run_of(plain):
    """Returns the RunPlan from its fields, in which JSON has replaced tuples by lists."""
    fields = {name: _tuples(value) for name, value in plain.items()}
    plans = tuple(StagePlan(**{name: _tuples(value) for name, value in plan.items()}) for plan in plain["plans"])
    homes = {name: _tuples(home) for name, home in plain["homes"].items()}
    return RunPlan(**fields | {"stages": range(*plain["stages"]), "plans": plans, "homes": homes})


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

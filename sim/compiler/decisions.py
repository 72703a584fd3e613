"""The decisions of a search, apart from the graph that they are for: enough to emit the same instructions again, without search
or simulation."""

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
    """
    Parameters
    ----------
    way : int
        Number of the way in which stages are written, among those that the compiler has of the graph.
    rows : int
        Samples of a chunk.
    runs : tuple of RunPlan
    order : int32 array
        Numbers of the instructions of the draft in the program's order.
    """

    way: int
    rows: int
    runs: tuple
    order: np.ndarray

    def choice(self, graph, way, config, batch):
        """Returns the :class:`Choice` for a graph and this way, `(tensors, stages)`, of it."""
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
        """Returns the decision, but for `order`, as JSON has it."""
        runs = [asdict(run) | {"stages": [run.stages.start, run.stages.stop]} for run in self.runs]
        return {"way": self.way, "rows": self.rows, "runs": runs}

    @classmethod
    def of_plain(cls, plain, order):
        """Returns the decision of what :meth:`plain` gave."""
        return cls(plain["way"], plain["rows"], tuple(map(_run_of, plain["runs"])), order)


def decision_of(way, choice, schedule):
    """Returns the :class:`Decision` by which a :class:`Choice` and its :class:`Schedule` came from way number `way`."""
    number = {id(op): index for index, op in enumerate(schedule.candidate.ops)}
    order = np.fromiter((number[id(op)] for op in schedule.ops), np.int32, len(schedule.ops))
    return Decision(way, choice.batched.rows, choice.runs, order)


def _run_of(plain):
    """RunPlan of its fields, whose tuples JSON has as lists."""
    fields = {name: _tuples(value) for name, value in plain.items()}
    plans = tuple(StagePlan(**{name: _tuples(value) for name, value in plan.items()}) for plan in plain["plans"])
    homes = {name: _tuples(home) for name, home in plain["homes"].items()}
    return RunPlan(**fields | {"stages": range(*plain["stages"]), "plans": plans, "homes": homes})


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

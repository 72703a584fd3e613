"""The decisions of a search, without the graph. They suffice to emit the same instructions again, without a search or a
simulation."""

from dataclasses import asdict, dataclass

import numpy as np

from .memory.batching import lay_along_x
from .memory.layout import lay_out
from .search import Candidate, Choice
from .tiling.chunk_tiling import RunPlan
from .tiling.stage_tiling import StagePlan

__all__ = ["Decision", "decision_of"]


@dataclass(frozen=True, eq=False)
class Decision:
    """The decisions of one search, which the program cache stores.

    Parameters
    ----------
    variant : int
        Index of the chosen variant of the graph among those of :func:`.run_passes`.
    rows : int
        Samples per chunk.
    runs : tuple of RunPlan
    order : int32 array
        The final order of the program: the i-th instruction is the one that was emitted at this index.
    """

    variant: int
    rows: int
    runs: tuple
    order: np.ndarray

    def choice(self, graph, variant, config, batch):
        """Returns the :class:`Choice` for a graph and its chosen variant."""
        batched = lay_along_x(graph, variant, batch, self.rows)
        homes = {name for run in self.runs for name in run.homes}
        return Choice(batched, lay_out(batched, config.n, homes), self.runs)

    def emit(self, choice, config):
        """Emits the instructions of a :class:`Choice` again and returns them in the program's order."""
        ops = Candidate(choice, self.runs, config).ops
        return [ops[number] for number in self.order]

    def plain(self):
        """Returns the decision without `order` as a dict of values that JSON can store."""
        runs = [asdict(run) | {"stages": [run.stages.start, run.stages.stop]} for run in self.runs]
        return {"variant": self.variant, "rows": self.rows, "runs": runs}

    @classmethod
    def of_plain(cls, plain, order):
        """Returns the Decision that :meth:`plain` converted to the dict `plain`. `order` is added to it."""
        return cls(plain["variant"], plain["rows"], tuple(map(_run_of, plain["runs"])), order)


def decision_of(variant, choice, schedule):
    """Returns the :class:`Decision` that reproduces a :class:`Choice` and its :class:`Schedule`. `variant` is an index."""
    number = {id(op): index for index, op in enumerate(schedule.candidate.ops)}
    order = np.fromiter((number[id(op)] for op in schedule.ops), np.int32, len(schedule.ops))
    return Decision(variant, choice.batched.rows, choice.runs, order)


def _run_of(plain):
    """Returns the RunPlan from a dict of its fields, in which JSON has replaced tuples by lists."""
    fields = {name: _tuples(value) for name, value in plain.items()}
    plans = tuple(StagePlan(**{name: _tuples(value) for name, value in plan.items()}) for plan in plain["plans"])
    homes = {name: _tuples(home) for name, home in plain["homes"].items()}
    return RunPlan(**fields | {"stages": range(*plain["stages"]), "plans": plans, "homes": homes})


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

"""The result of executing a divided model: outputs, the runs of its parts, and their checks."""

from dataclasses import dataclass, field, replace

import numpy as np

from ..check.against_model import ModelComparison
from ..check.interpreters import InterpreterError, available
from ..data.printable import quoted
from ..frontend.division import IDLE
from .inference_run import InferenceRun, RunError
from .places import interpreter_of

__all__ = ["DividedRun", "Row"]

_ALIKE = 2e-3  # largest difference in binary32 between the parts and the whole file, relative to the largest value


@dataclass(frozen=True)
class Row:
    """A part of a divided model, and where it runs.

    Parameters
    ----------
    on_core : bool
    nodes : int
    share : float
        Share of the multiplications of the model, 0 to 1.
    read_values, write_values : int
        Values that the core reads from the host, and writes for it. 0 for a part of the host.
    why : tuple of str
        Reasons why the core does not compute the nodes, each with their number.
    """

    on_core: bool
    nodes: int
    share: float
    read_values: int
    write_values: int
    why: tuple

    @classmethod
    def of(cls, graph, part, total):
        """Returns the row of a :class:`.RunPart`. `total` is the number of multiplications of the model."""
        part, core = part.part, part.model is not None
        words = (sum(map(graph.size, names)) if core else 0 for names in (part.inputs, part.outputs))
        return cls(core, len(part.nodes), part.multiplications / total, *words, _reasons(part.why))


def _reasons(why):
    """Returns texts for a :class:`.Part`, those of the most multiplications first."""
    groups = {}
    for node, reason, work in why:
        count, total = groups.get((node.op_type, reason), (0, 0))
        groups[node.op_type, reason] = count + 1, total + work
    ranked = sorted(groups.items(), key=lambda item: (-item[1][1], item[0][1] == IDLE, -item[1][0]))
    return tuple(f"{operator}{f' x {count}' if count > 1 else ''}: {why}" for (operator, why), (count, _) in ranked)


@dataclass(frozen=True, eq=False)
class DividedRun:
    """The result of executing a divided model on a backend.

    Parameters
    ----------
    outputs : dict of str to array
        Output arrays in the shapes and types of the ONNX model, by name.
    groups : list
        For each group of samples, a list of pairs of a part and its :class:`.InferenceRun`; None for a part of the host; a text
        if the host computed a part of the core, because of its values.
    """

    model: object = field(repr=False)
    place: object
    arrays: list = field(repr=False)
    count: int
    outputs: dict
    groups: list = field(repr=False)

    @property
    def output(self):
        """Returns the output array, or `{name: array}` if the model has several outputs."""
        return next(iter(self.outputs.values())) if len(self.outputs) == 1 else self.outputs

    @property
    def runs(self):
        """Returns the runs of the core, one for each part and group of samples."""
        return [run for runs in self.groups for _, run in runs if isinstance(run, InferenceRun)]

    @property
    def notes(self):
        """Returns the reasons why the host computed parts of the core in this run."""
        return tuple(dict.fromkeys(run for runs in self.groups for _, run in runs if isinstance(run, str)))

    @property
    def failure(self):
        """Returns a message of one line if a check of a part failed. Otherwise returns None."""
        return next(filter(None, (run.failure for run in self.runs)), None)

    def check(self):
        """Returns this object. Raises RunError if a check failed."""
        if self.failure:
            raise RunError(self.failure)
        return self

    @property
    def mismatched_bits(self):
        """Returns the number of bits in which parts differ from the golden model. Returns None if only it computed them."""
        found = [run.result.mismatched_bits for run in self.runs]
        return sum(found) if found and None not in found else None

    @property
    def cycles(self):
        """Returns the cycles of all parts, or None for models of the core without timing."""
        found = [run.result.cycles for run in self.runs]
        return sum(found) if found and None not in found else None

    def compare(self, against=None, most=8):
        """Compares the results with an ONNX interpreter that computes the whole file. Returns a
        :class:`sim.check.against_model.ModelComparison`.

        Its `error` is about a part of the core that differs from the interpreter on the part's own operands by more than rounding
        explains, or about a file that differs from its parts when both are computed in binary32.
        """
        makers = available() if against is None else [interpreter_of(against).make]
        reasons = []
        for make in makers:
            try:
                return self._compared(make, most)
            except InterpreterError as error:
                reasons.append(str(error))
        return ModelComparison(0, None, self.model.outputs[0].name, reason="; ".join(reasons))

    def _compared(self, make, most):
        names = list(self.outputs)
        session = make(self.model.path, names)
        arrays, parts = self.arrays[:most], self.groups[:most]
        theirs = [session(one | self.model._constants) for one in arrays]
        pairs = [pair for pair in zip(self._first(names, len(arrays)), map(_flat, zip(*theirs))) if pair[1] is not None]
        found = _figures(session.title, names[0], len(arrays) * self.count, pairs)
        for run in [run for runs in parts for _, run in runs if isinstance(run, InferenceRun)]:
            one = run.compare(most=most)
            rounding = max(found.rounding or 0, one.rounding or 0)
            found = replace(found, error=found.error or one.error, rounding=rounding, note=found.note or one.note)
        return found if found.error else replace(found, error=self._wrongly_divided(arrays[0], session.title, names, theirs[0]))

    def _first(self, names, count):
        whole = len(self.arrays) == count
        return [
            _flat([self.outputs[name] if whole else self.outputs[name][: len(self.outputs[name]) * count // len(self.arrays)]])
            for name in names
        ]

    def _wrongly_divided(self, arrays, title, names, theirs):
        """Returns a message if the parts in binary32 differ from the whole file, for one group of samples."""
        values, _ = self.model._values(arrays, self.count, lambda part, values: (part.on_host(values), None))
        if self.model.is_random:
            return None
        for name, right in zip(names, theirs):
            ours, right = values[name], np.asarray(right)
            if np.shape(ours) != right.shape:
                return f"output {quoted(name)}: its parts give the shape {np.shape(ours)}, {title} {right.shape}: wrongly divided"
            if right.dtype.kind == "f" and right.size:
                finite = np.isfinite(right) & np.isfinite(ours)
                bound = _ALIKE * np.abs(right[finite]).max(initial=0) + 1e-6
                far = np.abs(right[finite] - ours[finite]).max(initial=0) > bound
                if far or not np.array_equal(right[~finite], ours[~finite], equal_nan=True):
                    return f"output {quoted(name)}: its parts in binary32 differ from {title}: wrongly divided"
        return None


def _flat(arrays):
    """Returns the values of arrays in one binary64 array, or None if they are no numbers."""
    arrays = [np.asarray(one) for one in arrays]
    if any(one.dtype.kind not in "fiub" for one in arrays):
        return None
    return np.concatenate([one.astype(np.float64).reshape(-1) for one in arrays])


def _figures(title, output, samples, pairs):
    """Returns the comparison of pairs of flat arrays, ours and theirs. The first with the largest relative error counts."""
    found = ModelComparison(samples, title, output)
    worst = -1.0
    for ours, theirs in pairs:
        if ours is None or ours.shape != theirs.shape:
            continue
        finite = np.isfinite(ours) & np.isfinite(theirs)
        difference = ours[finite] - theirs[finite]
        scale = np.sqrt(np.square(theirs[finite]).mean()) if finite.any() else 0.0
        rms = float(np.sqrt(np.square(difference).mean())) if finite.any() else None
        if rms is not None and rms / max(scale, 1e-30) > worst:
            worst = rms / max(scale, 1e-30)
            found = replace(found, largest=float(np.abs(difference).max()), rms=rms, scale=float(scale))
        found = replace(found, not_finite=found.not_finite + int((~finite).sum()))
    return found

"""Batches of tensors with one position: their samples are stored along x, as if they were positions.

A dense layer is a convolution of 1 x 1. Processed sample by sample, it would give the array one row at a time. With the samples
along x it becomes a convolution with many positions. Neighbouring stages with samples along x form a run. A chunk is the group of
samples that passes through a run together.
"""

from dataclasses import dataclass, replace
from itertools import groupby

from ...ir.graph import Graph, Tensor

__all__ = ["Batched", "lay_along_x", "tensors_along_x", "reads"]


@dataclass(frozen=True, eq=False)
class Batched:
    """The stages and tensors of a graph for a whole batch.

    Parameters
    ----------
    graph : Graph
        The graph before the passes of :data:`.MAPPING`. It has the same number of stages.
    stages : tuple of Stage
    tensors : dict of str to Tensor
        The graph's tensors, and the tensors that the host gathers.
    gathers : sequence of Gather
    batch : int
    rows : int
        Samples per chunk; the last chunk may have fewer.
    along_x : set of str
        Tensors whose samples are stored along x.
    """

    graph: Graph
    stages: tuple
    tensors: dict
    gathers: tuple
    batch: int
    rows: int
    along_x: frozenset

    @property
    def chunks(self):
        return -(-self.batch // self.rows)

    @property
    def wide(self):
        """Returns True if the graph's output is binary32."""
        return any(map(self.graph.is_wide, self.graph.stages))

    def vectors(self, name):
        """Returns the number of vectors per position of a tensor: 2 if its values are binary32, else 1."""
        return 2 if name == self.graph.output and self.wide else 1

    def is_along_x(self, number):
        return self.stages[number].output in self.along_x

    def count(self, name):
        """Returns the length of a tensor's sample axis: the number of chunks if its samples are along x, and the number of
        samples otherwise."""
        return self.chunks if name in self.along_x else self.batch

    def runs(self, along_x):
        """Yields the ranges of neighbouring stages that are along x, if `along_x` is True; otherwise of the other stages."""
        for found, stages in groupby(range(len(self.stages)), self.is_along_x):
            numbers = [*stages]
            if found == along_x:
                yield range(numbers[0], numbers[-1] + 1)


def reads(stage):
    """Returns the set of names of the tensors that a stage reads."""
    tensors = (name for term in stage.terms for name in (term.source, term.data) if name)
    return {*tensors, *([stage.times] if stage.times else ())}


def tensors_along_x(stages, tensors):
    """Returns the names of the tensors whose samples can be stored along x: tensors with one position, if all stages that write
    or read them allow it."""
    found = {name for name, tensor in tensors.items() if tensor.shape[:2] == (1, 1)}
    found -= {name for tensor in tensors.values() if tensor.view for name in (tensor.name, tensor.view.of)}
    while True:
        others = set()
        for stage in stages:
            own_weights = any(term.data for term in stage.terms)
            if (
                own_weights
                or stage.output not in found
                or stage.size != (1, 1)
                or stage.pool
                or stage.times
                and stage.times not in found
            ):
                others |= {stage.output, *reads(stage)}
            else:
                others |= {term.source for term in stage.terms if term.kernel != (1, 1) or term.padding != (0, 0)}
        if not others & found:
            return frozenset(found)
        found -= others


def lay_along_x(graph, variant, batch, rows):
    """Stores samples along x where possible. Returns the :class:`Batched` for chunks of `rows` samples. `variant` is the graph
    after all passes."""
    along_x, tensors, made = tensors_along_x(variant.stages, variant.tensors), dict(variant.tensors), []
    tensors |= {name: Tensor(name, tensors[name].channels, 1, rows) for name in along_x}
    for stage in variant.stages:
        if stage.output in along_x:
            terms = (replace(term, stride=(1, 1), dilation=(1, 1)) if term.source in along_x else term for term in stage.terms)
            stage = replace(stage, size=(1, rows), terms=tuple(terms))
        made.append(stage)
    return Batched(graph, tuple(made), tensors, variant.gathers, batch, rows, along_x)

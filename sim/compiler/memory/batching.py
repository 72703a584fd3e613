"""The batch along x: where tensors have one position, their samples become positions.

A dense layer is a convolution of 1 x 1. Sample by sample it would give the array one row at a time; with the samples along x it
is a convolution like the others. Such tensors are called flat. Neighbouring stages with flat results are a run, and a chunk is
the samples that go through a run together.
"""

from dataclasses import dataclass, replace

from ...ir.graph import Graph, Tensor

__all__ = ["Batched", "lay_along_x", "tensors_along_x", "reads", "writes"]


@dataclass(frozen=True, eq=False)
class Batched:
    """Stages for a whole batch.

    Parameters
    ----------
    graph : Graph
        With stages one for one.
    stages : tuple of Stage
    tensors : dict of str to Tensor
        The graph's and those that the host gathers.
    gathers : sequence of Gather
    batch : int
    rows : int
        Samples of a chunk; the last one may have fewer.
    along_x : set of str
        Tensors whose samples lie along x.
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
        """Whether the output is binary32."""
        return any(map(self.graph.is_wide, self.graph.stages))

    def is_wide(self, stage):
        return stage.output == self.graph.output and self.wide

    def is_along_x(self, number):
        return self.stages[number].output in self.along_x

    def count(self, name):
        """Samples of a tensor, or chunks."""
        return self.chunks if name in self.along_x else self.batch

    def runs(self):
        """Ranges of numbers of stages: neighbours whose results are flat, and the others one by one."""
        first = 0
        for number in range(1, len(self.stages) + 1):
            if number == len(self.stages) or not (self.is_along_x(first) and self.is_along_x(number)):
                yield range(first, number)
                first = number


def reads(stage):
    """Names of the tensors that a stage reads."""
    tensors = (name for term in stage.terms for name in (term.source, term.data) if name)
    return {*tensors, *([stage.beside] if stage.beside else ())}


def writes(stage):
    """Names of the tensors that a stage writes."""
    return {stage.output, *(extra.tensor for extra in stage.extras)}


def tensors_along_x(stages, tensors):
    """Names of the tensors whose samples can lie along x: of one position, for those who write them and those who read them."""
    transposed = {tensor.transpose_of for tensor in tensors.values()}
    found = {
        name
        for name, tensor in tensors.items()
        if tensor.shape[:2] == (1, 1) and not tensor.transpose_of and name not in transposed
    }
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


def lay_along_x(graph, stages, gathers, batch, rows, tensors=None):
    """:class:`Batched` for chunks of `rows` samples; `tensors` are the graph's if not said."""
    tensors = {gather.tensor.name: gather.tensor for gather in gathers} | (tensors or graph.tensors)
    along_x = tensors_along_x(stages, tensors)
    tensors |= {name: Tensor(name, tensors[name].channels, 1, rows) for name in along_x}
    made = []
    for stage in stages:
        if stage.output in along_x:
            terms = (replace(term, stride=(1, 1), dilation=(1, 1)) if term.source in along_x else term for term in stage.terms)
            stage = replace(stage, size=(1, rows), terms=tuple(terms))
        made.append(stage)
    return Batched(graph, tuple(made), tensors, tuple(gathers), batch, rows, along_x)

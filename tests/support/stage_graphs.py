"""A builder of graphs from stages that have arrays as weights and biases."""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.sim.functions.functions import NONE, Function
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.stage import Pool, Stage, Term

__all__ = ["GivenStage", "GivenTerm", "built"]


@dataclass
class GivenTerm:
    """A :class:`sim.ir.stage.Term` with weights (kernel height, kernel width, channels of the source / groups, outputs)."""

    source: str
    weights: np.ndarray | None
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    fixed: bool = False
    data: str | None = None  # tensor whose values are the weights
    rows: bool = False  # a position of `data` has the weights of a source channel, not of an output
    sparse: bool = False


@dataclass
class GivenStage:
    """A :class:`sim.ir.stage.Stage` with a bias (channels,) or (height, width, channels)."""

    name: str
    output: str
    terms: tuple[GivenTerm, ...]
    size: tuple[int, int] = (1, 1)
    bias: np.ndarray | None = None
    pool: Pool | None = None
    function: Function = NONE
    softmax: bool = False
    times: str | None = None
    origin: tuple[int, int] = (0, 0)
    title: str = ""

    @property
    def channels(self):
        return self.terms[0].weights.shape[-1]

    @property
    def result_size(self):
        return self.pool.size if self.pool else self.size


def _term(graph, one, name):
    if one.data:
        return Term(one.source, one.data, swapped=not one.rows)
    windows = {"stride": one.stride, "dilation": one.dilation, "padding": one.padding, "groups": one.groups}
    return graph.term(one.source, name, one.weights, **windows, fixed=one.fixed, sparse=one.sparse)


def built(name, tensors, entry, output, stages, **facts):
    """Returns the graph of stages. `tensors` are by name. Default inputs: `entry`."""
    inputs = tuple(feed.tensor for feed in facts.get("feeds", ())) or (entry,)
    graph = Graph(name, dict(tensors), inputs, output, **facts)
    if not any(one.times for one in stages if one.output == output):
        graph.tensors[output] = replace(graph.tensors[output], wide=True)
    for one in stages:
        several = sum(not (term.fixed or term.data) for term in one.terms) > 1
        kinds = [
            f"factors{place}" if term.fixed else f"weights{place}" * several or "weights" for place, term in enumerate(one.terms)
        ]
        terms = tuple(_term(graph, term, f"{one.name}.{kind}") for term, kind in zip(one.terms, kinds))
        start = (
            None
            if one.bias is None
            else graph.constant(f"{one.name}.bias", one.bias if one.bias.ndim == 3 else one.bias[None, None])
        )
        fields = {"function": one.function, "softmax": one.softmax, "times": one.times, "name": one.name}
        graph.stages.append(Stage(one.output, terms, one.size, start, one.pool, origin=one.origin, title=one.title, **fields))
    return graph

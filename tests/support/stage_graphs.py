"""A builder of graphs from stages that have arrays as weights and biases."""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.sim.functions.functions import NONE, Function
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.stage import Pool, Stage, Tensor, Term


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


def linked(name, entry, stages, others=(), **facts):
    """Returns the graph of stages with the input `entry`, a :class:`.Tensor`. Tensors that are not among `others` are as large as
    the stages that write them."""
    given, output = {one.name: one for one in (entry, *others)}, stages[-1].output
    graph = Graph(name, given, tuple(feed.tensor for feed in facts.get("feeds", ())) or (entry.name,), output, **facts)
    for one in stages:
        parts = [part for part in stages if part.output == one.output]
        size = (max(part.origin[axis] + part.result_size[axis] for part in parts) for axis in (0, 1))
        is_wide = one.output == output and not any(part.times for part in parts)
        made = given.setdefault(one.output, Tensor(one.output, one.channels, *size))
        given[one.output] = replace(made, wide=is_wide)
        several, terms = sum(not (term.fixed or term.data) for term in one.terms) > 1, []
        for place, term in enumerate(one.terms):
            kind = f"factors{place}" if term.fixed else f"weights{place}" * several or "weights"
            terms.append(_term(graph, term, f"{one.name}.{kind}"))
        bias = one.bias if one.bias is None or one.bias.ndim == 3 else one.bias[None, None]
        start = None if bias is None else graph.constant(f"{one.name}.bias", bias)
        fields = {"function": one.function, "softmax": one.softmax, "times": one.times, "name": one.name, "title": one.title}
        graph.stages.append(Stage(one.output, tuple(terms), one.size, start, one.pool, origin=one.origin, **fields))
    return graph


def _term(graph, one, name):
    if one.data:
        return Term(one.source, one.data, swapped=not one.rows)
    windows = {"stride": one.stride, "dilation": one.dilation, "padding": one.padding, "groups": one.groups}
    return graph.term(one.source, name, one.weights, **windows, fixed=one.fixed, sparse=one.sparse)

"""Products whose second factor has one channel, which multiplies all channels of a stage's results. MULTIPLY needs such a factor
in all lanes.

If a stage computes only this factor, the stage writes it to all lanes. Any other factor is copied to all lanes by an additional
stage.
"""

from dataclasses import replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.graph import Stage, Term

__all__ = ["widen_factors"]


def _reads(stage):
    tensors = (name for term in stage.terms for name in (term.source, term.data) if name)
    return {*tensors, *([stage.times] if stage.times else ())}


def widen_factors(graph, config, batch):
    """Returns the graph in which each factor with one channel is in as many lanes as its products need."""
    lanes = {}
    for stage in graph.stages:
        if _spreads(graph, stage):
            lanes[stage.times] = max(lanes.get(stage.times, 1), min(config.n, stage.channels))
    if not lanes:
        return graph
    alone, tensors, stages, names = _alone(graph, lanes), dict(graph.tensors), [], {}
    for stage in graph.stages:
        name = stage.times
        if _spreads(graph, stage):
            if name not in names:
                names[name] = name if name in alone else f"{name}, in {lanes[name]} lanes"
                tensors[names[name]] = replace(tensors[name], name=names[name], channels=lanes[name])
                if name not in alone:
                    stages.append(_copy(tensors[name], names[name], lanes[name]))
            stage = replace(stage, times=names[name])
        stages.append(_widened(stage, lanes[stage.output]) if stage.output in alone else stage)
    return replace(graph, tensors=tensors, stages=tuple(stages))


def _spreads(graph, stage):
    return stage.times and graph.tensors[stage.times].channels < stage.channels


def _alone(graph, factors):
    """Returns the names of the factors that their stages can write to all lanes: nothing else reads them, and they are sums or
    functions of sums."""
    others = {*graph.input_names, *graph.outputs}
    for stage in graph.stages:
        others |= _reads(stage if not _spreads(graph, stage) else replace(stage, times=None))
        others |= {stage.output} if stage.times or stage.softmax else set()
        others |= {stage.output for term in stage.terms if term.data}
    return set(factors) - others


def _widened(stage, lanes):
    terms = tuple(replace(term, weights=np.repeat(term.weights, lanes, axis=3)) for term in stage.terms)
    return replace(stage, terms=terms, bias=None if stage.bias is None else np.repeat(stage.bias, lanes, axis=-1))


def _copy(tensor, name, lanes):
    term = Term(tensor.name, np.ones((1, 1, 1, lanes), bfloat16), fixed=True)
    return Stage(name, name, (term,), tensor.shape[:2], bias=np.full(lanes, -0.0, np.float32))  # -0 + x is x, for -0 too

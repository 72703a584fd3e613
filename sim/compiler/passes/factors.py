"""Products whose second factor has one channel, which multiplies all channels of a stage's results. MULTIPLY needs such a factor
in all lanes.

If a stage computes only this factor, the stage writes it to all lanes. Any other factor is copied to all lanes by an additional
stage.
"""

from dataclasses import replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Stage

__all__ = ["widen_factors"]


def widen_factors(graph, config, batch):
    """Returns the graph in which each factor with one channel is in as many lanes as its products need."""
    lanes = {}
    for stage in graph.stages:
        if _spreads(graph, stage):
            lanes[stage.times] = max(lanes.get(stage.times, 1), min(config.n, graph.channels(stage)))
    if not lanes:
        return graph
    alone, made, names = _alone(graph, lanes), graph.copied(), {}
    made.stages = []
    for stage in graph.stages:
        name = stage.times
        if _spreads(graph, stage):
            if name not in names:
                names[name] = name if name in alone else _copied(made, graph.tensors[name], lanes[name])
                made.tensors[names[name]] = replace(made.tensors[names[name]], channels=lanes[name])
            stage = replace(stage, times=names[name])
        made.stages.append(_widened(made, stage, lanes[stage.output]) if stage.output in alone else stage)
    return made


def _spreads(graph, stage):
    return stage.times and graph.tensors[stage.times].channels == 1 < graph.channels(stage)


def _alone(graph, factors):
    """Returns the names of the factors that their stages, or the host, can write to all lanes: nothing else reads them, and they
    are sums of constant weights, or functions of such sums."""
    others = {*graph.inputs, *graph.outputs, *graph.state, *graph.state.values()}
    for stage in graph.stages:
        others |= {*replace(stage, times=None if _spreads(graph, stage) else stage.times).operands}
        copied = any(term.copies for term in stage.terms)
        fixed = {*(term.weights for term in stage.terms), *filter(None, [stage.start])} <= graph.constants.keys()
        others |= set() if fixed and not (stage.times or stage.softmax or copied) else {stage.output}
    return set(factors) - others


def _widened(made, stage, lanes):
    def wide(name):
        return made.constant(f"{name}, in {lanes} lanes", np.repeat(made.constants[name], lanes, axis=2))

    terms = tuple(replace(term, weights=wide(term.weights)) for term in stage.terms)
    return replace(stage, terms=terms, start=stage.start and wide(stage.start))


def _copied(made, tensor, lanes):
    """Adds a stage that copies a factor to all lanes. Returns the name of the copy."""
    name = f"{tensor.name}, in {lanes} lanes"
    term = made.term(tensor.name, f"{name}.factors", np.ones((1, 1, 1, lanes), bfloat16), fixed=True)
    return made.add_stage(Stage(name, (term,), tensor.shape[:2], name=name), lanes)

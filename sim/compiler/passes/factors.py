"""Products whose second factor has one channel, which multiplies all channels of a stage's results. MULTIPLY needs such a factor
in all lanes. An additional stage copies it to all lanes.
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
    made, names = graph.copied(), {}
    made.stages = []
    for stage in graph.stages:
        if _spreads(graph, stage):
            name = stage.times
            if name not in names:
                names[name] = _copied(made, graph.tensors[name], lanes[name])
            stage = replace(stage, times=names[name])
        made.stages.append(stage)
    return made


def _spreads(graph, stage):
    return stage.times and graph.tensors[stage.times].channels == 1 < graph.channels(stage)


def _copied(made, tensor, lanes):
    """Adds a stage that copies a factor to all lanes. Returns the name of the copy."""
    name = f"{tensor.name}, in {lanes} lanes"
    term = made.term(tensor.name, f"{name}.factors", np.ones((1, 1, 1, lanes), bfloat16), fixed=True)
    start = made.constant(f"{name}.bias", np.full((1, 1, lanes), -0.0, np.float32))  # -0 + x is x, for -0 too
    return made.add_stage(Stage(name, (term,), tensor.shape[:2], start=start, name=name), lanes)

"""Splitting of max pooling into two stages, along x and then along y, where the sums of one window do not fit the accumulators.

The intermediate tensor is bfloat16. Rounding and the maximum commute, so no bit changes in a result that is itself rounded to
bfloat16.
"""

from dataclasses import replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.graph import Pool, Stage, Tensor, Term, span

__all__ = ["split_windows"]


def _fits(stage, depth):
    pool = stage.pool
    reach = [
        min(have, span(1, 1, window, dilation)) for have, window, dilation in zip(stage.sums_size, pool.window, pool.dilation)
    ]
    return np.prod(reach) <= depth


def _split(stage, number):
    """Splits a stage in two. Returns the intermediate tensor and the two stages. `number` makes the tensor's name unique."""
    pool, height = stage.pool, stage.sums_size[0]
    between = Tensor(f"{stage.name}, largest along x, {number}", stage.channels, height, pool.size[1])
    along_x = Pool((1, pool.window[1]), (height, pool.size[1]), (1, pool.stride[1]), (1, pool.dilation[1]), (0, pool.padding[1]))
    along_y = Pool((pool.window[0], 1), pool.size, (pool.stride[0], 1), (pool.dilation[0], 1), (pool.padding[0], 0))
    one = Term(between.name, np.ones((1, 1, 1, stage.channels), bfloat16), groups=stage.channels)
    first = Stage(f"{stage.name}, along x", between.name, stage.terms, (height, stage.size[1]), stage.bias, along_x)
    return between, first, replace(stage, terms=(one,), size=(height, pool.size[1]), bias=None, pool=along_y)


def split_windows(graph, config, batch):
    """Returns the graph in which stages are split if one window needs more accumulator rows than the core has. Stages with
    binary32 results are not split."""
    tensors, stages = dict(graph.tensors), []
    for stage in graph.stages:
        if stage.pool and not graph.is_wide(stage) and not _fits(stage, config.accumulator_depth):
            between, *parts = _split(stage, len(tensors))
            tensors[between.name] = between
            stages += parts
        else:
            stages.append(stage)
    return replace(graph, tensors=tensors, stages=tuple(stages)) if len(stages) > len(graph.stages) else graph

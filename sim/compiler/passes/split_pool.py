"""Splitting of max pooling into two stages, along x and then along y, where the sums of one window do not fit the accumulators.

The intermediate tensor is bfloat16. Rounding and the maximum commute, so no bit changes in a result that is itself rounded to
bfloat16.
"""

from dataclasses import replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Pool, Stage, span

__all__ = ["split_windows"]


def _fits(stage, depth):
    pool = stage.pool
    reach = [
        min(have, span(1, 1, window, dilation)) for have, window, dilation in zip(stage.sums_size, pool.window, pool.dilation)
    ]
    return np.prod(reach) <= depth


def _split(made, stage):
    """Adds the two stages in place of a stage."""
    pool, height, channels = stage.pool, stage.sums_size[0], made.channels(stage)
    along_x = Pool((1, pool.window[1]), (height, pool.size[1]), (1, pool.stride[1]), (1, pool.dilation[1]), (0, pool.padding[1]))
    along_y = Pool((pool.window[0], 1), pool.size, (pool.stride[0], 1), (pool.dilation[0], 1), (pool.padding[0], 0))
    first = Stage(f"{stage.name}, largest along x", stage.terms, (height, stage.size[1]), stage.start, along_x)
    between = made.add_stage(replace(first, name=f"{stage.name}, along x"), channels)
    one = made.term(between, "ones", np.ones((1, 1, 1, channels), bfloat16), groups=channels)
    made.stages.append(replace(stage, terms=(one,), size=(height, pool.size[1]), start=None, pool=along_y))


def split_windows(graph, config, batch):
    """Returns the graph in which stages are split if one window needs more accumulator rows than the core has. Stages with
    binary32 results are not split."""
    made = graph.copied()
    made.stages = []
    for stage in graph.stages:
        if stage.pool and not graph.tensors[stage.output].wide and not _fits(stage, config.accumulator_depth):
            _split(made, stage)
        else:
            made.stages.append(stage)
    return made if len(made.stages) > len(graph.stages) else graph

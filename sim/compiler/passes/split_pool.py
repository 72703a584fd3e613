"""Splitting of max pooling into two stages: along x and then along y, where the sums of one window do not fit the accumulators,
and along one axis, where a window is longer than POOL can have.

The intermediate tensor is bfloat16. Rounding and the maximum commute, so no bit changes in a result that is itself rounded to
bfloat16.
"""

from dataclasses import replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Pool, Stage, span
from ..errors import CompileError

__all__ = ["split_windows"]

_LONGEST = 255  # positions of a window along one axis


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
    _continued(made, stage, between, (height, pool.size[1]), along_y)


def _long_axis(stage):
    """Returns the axis along which the windows of a stage are longer than POOL can have, or None."""
    pool = stage.pool
    return next((axis for axis in (0, 1) if min(pool.window[axis], stage.sums_size[axis]) > _LONGEST), None)


def _shorten(made, stage, axis):
    """Adds two stages in place of a stage: the largest of each part of a window, and the largest of its parts, which may
    overlap."""
    pool, have = stage.pool, stage.sums_size[axis]
    if pool.padding[axis] or pool.dilation[axis] > 1:
        raise CompileError(
            f"{stage.title or stage.name}: max pooling over more than {_LONGEST} positions, with padding or dilation"
        )
    window = pool.window[axis]
    count = -(-window // _LONGEST)
    step = (window - 1) // count
    part, by = window - (count - 1) * step, step if pool.size[axis] == 1 else 1

    def along(number, other):
        return (number, other[1]) if axis == 0 else (other[0], number)

    ones, channels = (1, 1), made.channels(stage)
    size = along(count if by > 1 else have - part + 1, stage.sums_size)
    first = Pool(along(part, ones), size, along(by, ones))
    dilation = along(step // by, pool.dilation)
    second = replace(pool, window=along(count, pool.window), dilation=dilation)
    parts = Stage(f"{stage.name}, largest of parts", stage.terms, stage.size, stage.start, first, name=f"{stage.name}, parts")
    _continued(made, stage, made.add_stage(parts, channels), size, second)


def _continued(made, stage, between, size, pool):
    """Adds a stage that pools the results `between` of another one, and has the function of `stage`."""
    channels = made.channels(stage)
    one = made.term(between, "ones", np.ones((1, 1, 1, channels), bfloat16), groups=channels)
    made.stages.append(replace(stage, terms=(one,), size=size, start=None, pool=pool))


def split_windows(graph, config, batch):
    """Returns the graph in which stages are split if one window needs more accumulator rows than the core has, or is longer than
    POOL can have. Stages with binary32 results are not split."""
    made = graph.copied()
    made.stages, waiting = [], list(reversed(graph.stages))
    while waiting:
        stage, before = waiting.pop(), len(made.stages)
        if not stage.pool or made.tensors[stage.output].wide:
            made.stages.append(stage)
        elif not _fits(stage, config.accumulator_depth) and min(stage.pool.window) > 1:
            _split(made, stage)
        elif (axis := _long_axis(stage)) is not None:
            _shorten(made, stage, axis)
        else:
            made.stages.append(stage)
        if len(made.stages) > before + 1:  # the new stages may have long windows
            waiting += reversed(made.stages[before:])
            del made.stages[before:]
    return made if len(made.stages) > len(graph.stages) else graph

"""Splitting of stages whose sums of one line, or of one sample if windows of pooling overlap, do not fit the accumulators. Each
part computes a rectangle of the results. No sum changes."""

from dataclasses import replace
from itertools import product

from ...ir.bias_rows import moved
from ...ir.stage import span

__all__ = ["split_large"]

_PARTS = 2  # a job has at most one of so many parts of the accumulators
_IMAGE = 8  # a line of windows has at most one of so many parts of the unified buffer


def split_large(graph, config, batch):
    """Returns the graph in which large stages are split."""
    made, names = graph.copied(), {stage.name for stage in graph.stages}
    made.stages = stages = []
    for stage in graph.stages:
        ranges = [_ranges(stage, axis, most) for axis, most in enumerate(_most(graph, stage, config))]
        for number, (rows, columns) in enumerate(product(*ranges)):
            name = stage.name
            while number and name in names:
                name = f"{stage.name}_{number}" if name == stage.name else f"{name}_"
            names.add(name)
            whole = len(ranges[0]) == len(ranges[1]) == 1
            stages.append(stage if whole else _part(made, stage, name, rows, columns))
    return made if len(stages) > len(graph.stages) else graph


def _most(graph, stage, config):
    (height, width), depth = stage.sums_size, config.accumulator_depth
    reads = any(term.kernel != (1, 1) for term in stage.terms) or stage.pool
    if not reads or (height, width) == (1, 1) or stage.times or any(map(graph.is_product, stage.terms)):
        return height, width
    image = max(term.kernel[0] * max(1, term.stride[1]) for term in stage.terms)
    limit = min(depth // _PARTS, config.unified_buffer_depth // (_IMAGE * image))
    if stage.pool and not stage.pool.is_apart((height, width)):
        columns = min(width, max(limit // _reach(stage, 0), _reach(stage, 1)))
        return max(limit // columns, _reach(stage, 0)), columns
    return height, max(limit // (_reach(stage, 0) if stage.pool else 1), _reach(stage, 1) if stage.pool else 1)


def _reach(stage, axis):
    pool = stage.pool
    return min(stage.sums_size[axis], span(1, 1, pool.window[axis], pool.dilation[axis]))


def _ranges(stage, axis, most):
    count, ranges = stage.result_size[axis], []
    if stage.sums_size[axis] <= most:
        return [(0, count)]
    first = 0
    while first < count:
        end = first + 1
        while end < count and len(_sums(stage, axis, first, end + 1)) <= most:
            end += 1
        ranges.append((first, end))
        first = end
    return ranges


def _sums(stage, axis, first, end):
    if not stage.pool:
        return range(first, end)
    pool = stage.pool
    start = first * pool.stride[axis] - pool.padding[axis]
    reach = span(end - first, pool.stride[axis], pool.window[axis], pool.dilation[axis])
    return range(max(0, start), min(stage.sums_size[axis], start + reach))


def _part(made, stage, name, *ranges):
    """Returns the stage of a rectangle of results, `(first, end)` along y and along x."""
    sums = [_sums(stage, axis, *one) for axis, one in enumerate(ranges)]
    size, result = tuple(map(len, sums)), tuple(end - first for first, end in ranges)
    pool, start = stage.pool, stage.start
    if pool:
        starts = [first * by - before for (first, _), by, before in zip(ranges, pool.stride, pool.padding)]
        padding = tuple(own.start - start for own, start in zip(sums, starts))
        pool = replace(pool, size=result, padding=padding)
    if made.has_bias_rows(stage):
        rows = made.constants[start][sums[0].start : sums[0].stop, sums[1].start : sums[1].stop]
        start = made.constant(f"{name}.bias", rows)
    terms = tuple(moved(term, sums[0].start, sums[1].start) for term in stage.terms)
    origin = tuple(have + first for have, (first, _) in zip(stage.origin, ranges))
    return replace(stage, name=name, terms=terms, size=size, start=start, pool=pool, origin=origin)

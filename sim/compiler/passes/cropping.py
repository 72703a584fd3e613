"""Cropping: removal of tensor positions that no stage reads, and of pooling with windows of one position.

If sums are pooled, the convolution may leave the last rows and columns of its source unread. No result depends on these
positions. The gradient of these positions is 0, and they add 0 to the gradients of parameters.
"""

from dataclasses import replace

from ...ir.stage import span

__all__ = ["crop"]


def _reach(graph, stages, name):
    have, found = graph.tensors[name], [1, 1]
    for stage in stages:
        for term in stage.terms:
            if term.source == name:
                loops = zip(stage.sums_size, term.stride, term.kernel, term.dilation, term.padding)
                ends = [span(count, *loop) - padding for count, *loop, padding in loops]
                found = [max(a, b) for a, b in zip(found, ends)]
    return tuple(min(a, b) for a, b in zip(found, (have.height, have.width)))


def _is_windows(graph):
    outputs = {stage.output for stage in graph.stages}
    others = any(
        stage.times
        or stage.softmax
        or graph.has_bias_rows(stage)
        or stage.is_repeated
        or any(term.copies or graph.is_product(term) for term in stage.terms)
        for stage in graph.stages
    )
    return len(outputs) == len(graph.stages) and not (others or graph.feeds)


def crop(graph, config, batch):
    """Returns the graph without the positions of results that no stage reads. Networks with products of results, and the like,
    are unchanged."""
    stages, tensors = [], dict(graph.tensors)
    if not _is_windows(graph):
        return graph
    for stage in reversed(graph.stages):
        if stage.output not in graph.outputs:
            size = _reach(graph, stages, stage.output)
            stage = replace(stage, pool=replace(stage.pool, size=size)) if stage.pool else replace(stage, size=size)
            if stage.pool and stage.pool.window == (1, 1) and stage.pool.is_apart(size):
                stage = replace(stage, pool=None, size=size)
            tensors[stage.output] = replace(tensors[stage.output], height=size[0], width=size[1])
        stages.insert(0, stage if stage.size == stage.sums_size else replace(stage, size=stage.sums_size))
    if all(one.size == other.size and one.pool == other.pool for one, other in zip(stages, graph.stages)):
        return graph
    return replace(graph, stages=stages, tensors=tensors)

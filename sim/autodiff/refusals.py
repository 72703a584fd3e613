"""Checks that refuse networks which cannot be trained."""

import numpy as np

from ..functions.derivatives import DERIVATIVES
from ..functions.functions import NONE
from ..ir.errors import ModelError
from ..ir.training import NOWHERE, Loss
from .found_norms import norms_in

__all__ = ["check_trainable"]


def _refusal(stage, cause):
    return ModelError(f"{stage.title or f'stage {stage.name!r}'}: {cause}")


def check_trainable(graph, loss):
    """Checks that a graph can be trained with a :class:`sim.ir.training.Loss`. If it cannot be trained, raises a
    :class:`sim.ir.errors.ModelError` whose message is one line that names the operator and its node."""
    writers = [stage.output for stage in graph.stages]
    last = graph.stages[-1]
    roots = {root for (_, root), _ in norms_in(graph).values()}
    for number, stage in enumerate(graph.stages):
        whole = graph.tensors[stage.output]
        if writers.count(stage.output) > 1 or stage.result_size != (whole.height, whole.width):
            raise _refusal(stage, "computes its result in several parts, which can't be trained")
        if number not in roots and stage.function.is_table and stage.function.name not in DERIVATIVES:
            raise _refusal(stage, f"its function {stage.function.name} can't be trained; replace it, for example by Relu")
        if any(0 in term.stride for term in stage.terms):
            raise _refusal(stage, "reads one position for all of its results, which can't be trained")
        _check_pool(stage)
    _check_end(graph, last, loss)


def _check_end(graph, last, loss):
    if last.output != graph.output:
        raise _refusal(last, "its result is not the model's output, which training needs of the last stage")
    if loss is Loss.CROSS_ENTROPY and (last.function != NONE or last.pool or last.times):
        what = "a product" if last.times else "pooling" if last.pool else last.function.name
        raise _refusal(last, f"the model ends in {what}; training needs logits, the input of Softmax, or --loss mse")
    if loss is Loss.CROSS_ENTROPY and last.channels == 1:
        cause = "has one result, whose Softmax is always 1: there is nothing to learn; training needs a number for each class"
        raise _refusal(last, f"{cause}, or --loss mse")
    count = int(np.prod(graph.tensors[graph.output].shape))
    order = graph.output_order
    if order is not None and sorted(order.tolist()) != list(range(count)):
        raise _refusal(last, "the model's result omits or repeats some of its logits, which can't be trained")


def _check_pool(stage):
    pool = stage.pool
    if pool is None:
        return
    if pool.window[0] * pool.window[1] >= NOWHERE:
        raise _refusal(stage, f"its pooling windows have {NOWHERE} positions or more, which can't be trained")
    if pool.padding != (0, 0):
        raise _refusal(stage, "its pooling windows include padding, which can't be trained")
    if pool.dilation != (1, 1):
        raise _refusal(stage, "its pooling windows are dilated, which can't be trained")
    if any(stride < window for count, stride, window in zip(pool.size, pool.stride, pool.window) if count > 1):
        raise _refusal(stage, "its pooling windows overlap, which can't be trained; use strides of the window's size")
    if any(stride > window for count, stride, window in zip(pool.size, pool.stride, pool.window) if count > 1):
        raise _refusal(stage, "its pooling windows leave gaps, which can't be trained; use strides of the window's size")

"""Checks that refuse networks which cannot be trained."""

from math import prod

import numpy as np

from ..functions.derivatives import DERIVATIVES
from ..functions.functions import NONE, RELU
from ..ir.errors import ModelError
from ..ir.reshapes import without_reshapes
from ..ir.stage import NOWHERE, span
from ..ir.strided_copies import places_of
from .results import INVERSE_ROOT

__all__ = ["REFUSALS", "check_derivatives", "check_trainable", "refusal"]

_MOST_COPIES = 64  # of a value; its gradient has a term for each
_CLASSES = "training needs a number for each class"
#: Refusals of training: name -> (operators, message). `datasheet` writes them into sim/README.md.
REFUSALS = {
    "shared": (
        "layers that may share weights, in a file that cannot be read with other weights",
        "has the weights of an operator before it, and training cannot tell if they are one; give it other values",
    ),
    "parts": (
        "an operator that computes its result in several parts with weights",
        "computes its result in several parts with weights, which can't be trained; put a Relu after it",
    ),
    "function": ("a function without a derivative", "its function {} can't be trained; use another one, such as tanh"),
    "position": (
        f"a vector that is repeated at more than {_MOST_COPIES} positions, as in GroupNorm and InstanceNorm",
        f"reads one position for more than {_MOST_COPIES} results, which can't be trained; put a LayerNormalization in its place",
    ),
    "copies": (
        f"Gather, Expand and others that use a value more than {_MOST_COPIES} times between layers",
        f"copies a value to more than {_MOST_COPIES} places, which can't be trained; put a dense layer in its place",
    ),
    "windows": (
        f"MaxPool of {NOWHERE} positions or more",
        f"its pooling windows have {NOWHERE} positions or more, which can't be trained; put two smaller ones in its place",
    ),
    "padding": (
        "MaxPool with `pads`, or with `ceil_mode` if a window is not full, unless a Relu is before or after it",
        "its pooling windows include padding, which can't be trained without a Relu; put one before it",
    ),
    "table": (
        "MaxPool whose windows overlap, or have padding, gaps or dilations, before another function than Relu",
        "its function {} follows pooling windows that are not side by side, which can't be trained; put a Relu in its place",
    ),
    "output": (
        "an output in the midst of the network",
        "its result is not the model's output, which training needs of the last stage; let the model end with it",
    ),
    "end": (
        "the last operator, with a cross-entropy",
        'the model ends in {}; training needs logits, the input of Softmax or Sigmoid, or `loss="mse"`',
    ),
    "class": (
        "one class, with the cross-entropy",
        f"has one result, whose Softmax is always 1; {_CLASSES}, or the loss `binary_crossentropy` or `mse`",
    ),
    "order": (
        "Gather or Slice of the logits",
        "the model's result omits or repeats some of its logits, which can't be trained; put a dense layer after it",
    ),
}


def refusal(stage, name, *values):
    """Returns the :class:`sim.ir.errors.ModelError` of a stage for a name of :data:`REFUSALS`."""
    return ModelError(f"{stage.title or f'stage {stage.name!r}'}: {REFUSALS[name][1].format(*values)}")


def check_trainable(graph, loss):
    """Checks that a graph can be trained with a :class:`sim.ir.losses.Loss`. If it cannot be trained, raises a
    :class:`sim.ir.errors.ModelError` whose message is one line that names the operator and its node."""
    if graph.beside:
        raise ModelError(
            f"{graph.name}: computes its results in several tensors, which can't be trained; put a dense layer after them"
        )
    graph = without_reshapes(graph)
    writers, last = [stage.output for stage in graph.stages], graph.stages[-1]
    for number, stage in enumerate(graph.stages):
        if graph.is_part(stage):
            _check_parts(graph, stage)
        if not set(writers[number:]).isdisjoint(stage.operands):  # parts of these tensors are not computed yet
            raise refusal(stage, "parts")
        _check_pool(stage)
    _check_end(graph, last, loss)


def check_derivatives(graph):
    """Checks that each stage that depends on a parameter has a derivative. If one has none, raises a
    :class:`sim.ir.errors.ModelError` as :func:`check_trainable`."""
    graph = without_reshapes(graph)
    moved = graph.reached(graph.parameters)
    for number in graph.differentiated:
        stage = graph.stages[number]
        if stage.function.is_table and stage.function.name not in DERIVATIVES and stage.function != INVERSE_ROOT:
            raise refusal(stage, "function", stage.function.name)
        for term in stage.terms:
            if term.source in moved and term.copies and _copies_of_a_value(graph, stage, term) > _MOST_COPIES:
                raise refusal(stage, "copies")
            if term.source in moved and 0 in term.stride and (not term.fixed or prod(stage.size) > _MOST_COPIES):
                raise refusal(stage, "position")


def _copies_of_a_value(graph, stage, term):
    index = places_of(term.copies, prod(graph.tensors[stage.output].shape))
    return np.bincount(index[index >= 0]).max(initial=0)


def _check_parts(graph, stage):
    """Checks a stage that computes a part of a tensor. Weights of several parts would be trained apart from each other."""
    tensor = graph.tensors[stage.output]
    sizes = [prod(one.result_size) for one in graph.stages if one.output == stage.output]
    if sum(sizes) != tensor.height * tensor.width or not all(term.fixed or graph.is_product(term) for term in stage.terms):
        raise refusal(stage, "parts")


def _check_end(graph, last, loss):
    if last.output != graph.output:
        raise refusal(last, "output")
    if loss.is_of_logits and (last.function != NONE or last.pool or last.times):
        what = "a product" if last.times else "pooling" if last.pool else last.function.name
        raise refusal(last, "end", what)
    if loss.is_of_classes and graph.channels(last) == 1:
        raise refusal(last, "class")
    count = int(np.prod(graph.tensors[graph.output].shape))
    order = graph.output_order
    if order is not None and sorted(order.tolist()) != list(range(count)):
        raise refusal(last, "order")


def _check_pool(stage):
    pool = stage.pool
    if pool is None or stage.is_repeated:
        return
    if pool.window[0] * pool.window[1] >= NOWHERE:
        raise refusal(stage, "windows")
    if stage.function.is_table and not pool.is_apart(stage.size):
        raise refusal(stage, "table", stage.function.name)
    sizes = zip(pool.size, pool.stride, pool.window, pool.dilation, pool.padding, stage.size)
    is_inside = all(not before and span(*window) <= have for *window, before, have in sizes)
    if stage.function != RELU and not is_inside:
        raise refusal(stage, "padding")

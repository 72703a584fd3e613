"""Lowering of fused nodes to a :class:`sim.ir.graph.Graph`, with rounded weights."""

from dataclasses import replace
from math import prod

import numpy as np

from ..data.printable import printable
from ..golden.arithmetic import bfloat16, round_bfloat16
from ..golden.function_tables import table_of
from ..ir.errors import ModelError
from ..ir.graph import Graph
from ..ir.sample_order import Feed
from ..ir.stage import Stage, Term
from ..ir.strided_copies import strided_copies
from .calibration import lost_means, round_windows
from .fuse import in_order
from .nodes import Constant, Copy, Input

__all__ = ["as_graph"]

_LEAST = 2.0**-126  # least normal number
_SPLIT = 2.0**-100  # smaller weights are not split: the remainder may be subnormal
_LARGE = 2.0**20
_CALIBRATED = "weights are rounded so that sums keep their means"
_MOST_CHOICES = 1 << 26, 1 << 27  # limits per node and per network on weights of 1 or 0 that only select channels


def _checked_function(function, title):
    """Returns `function` unchanged. Raises ModelError, with the node's `title`, if no table can represent it."""
    try:
        if function.is_table:
            table_of(function)
    except ValueError as error:
        raise ModelError(f"{title}: {error}") from None
    return function


def _rounded(weights):
    return round_bfloat16(np.asarray(weights, np.float32))


def _bias(node):
    """Returns the bias of a node, rounded to binary32, or None. Raises ModelError for finite values that become infinite, since
    the sums are finite in ONNX."""
    if node.bias is None:
        return None
    with np.errstate(all="ignore"):
        bias = np.asarray(node.bias, np.float32) + np.float32(0)  # adding +0 removes -0
    if (np.isinf(bias) & np.isfinite(node.bias)).any():
        raise ModelError(
            f"{node.title}: the constants added to it reach {np.abs(node.bias).max():.4g}, which is infinite in binary32; "
            "scale them down"
        )
    return bias


def _checked(weights, title, exact=False):
    """Returns rounded weights. Refuses finite weights that overflow: their product with 0 is NaN, but 0 in ONNX. Weights that are
    `exact` become sums of several, so they may overflow in bfloat16, but not in binary32."""
    rounded = _rounded(weights)
    if exact:
        with np.errstate(over="ignore"):
            rounded = np.where(np.isfinite(np.asarray(weights, np.float32)), 0, rounded)
    if (np.isinf(rounded) & np.isfinite(weights)).any():
        largest = np.abs(weights[np.isfinite(weights)]).max()
        raise ModelError(
            f"{title}: its weights, multiplied by the constants folded into them, reach {largest:.4g}, which is "
            "infinite in bfloat16; scale them down"
        )
    return _rounded(weights) if exact else rounded


def _terms(graph, tap, names, name, title, known, means):
    """Returns the terms of a tap. `known` has constants by the place of their weights in memory: steps of a recurrent layer share
    them."""
    if tap.matrix is not None:
        return [Term(names[tap.source], names[tap.matrix], swapped=not tap.rows)]
    # Selected channels of others than its own tile leave most tiles of the weights without a choice: they need no pass.
    sparse = tap.exact and tap.groups == 1 and (tap.select is not None or 2 * np.count_nonzero(tap.weights) < tap.weights.size)
    key = tap.weights.__array_interface__["data"][0], tap.weights.shape, tap.weights.strides, tap.exact, sparse
    if key not in known:
        is_one = not any(tap.weights.strides) and tap.weights.size > 1  # one number, broadcast
        parts = _rounded_weights(replace(tap, weights=tap.weights[:1, :1, :1, :1]) if is_one else tap, title, sparse)
        if means and not tap.exact and not is_one:
            parts = [round_windows(tap.weights)]
        parts = [np.broadcast_to(part, tap.weights.shape) for part in parts]
        known[key] = [graph.constant(name, part.reshape(-1, *part.shape[2:])) for part in parts]
    place = tap.kernel, tap.stride, tap.dilation, tap.padding, tap.groups
    return [Term(names[tap.source], one, *place, fixed=tap.exact, sparse=sparse) for one in known[key]]


def _rounded_weights(tap, title, sparse):
    weights = [_checked(tap.weights, title, tap.exact)]
    if tap.exact:
        # Both summands of a weight have the same sign. An infinite operand times both then adds up to infinity, not NaN.
        values = np.asarray(tap.weights, np.float32)
        first = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        first = np.where(np.abs(values) < _SPLIT, _rounded(values).astype(np.float32), first)
        rest = _rounded(np.where(np.isfinite(values), values - first, 0))
        if (rest != 0).any():  # a weight without remainder becomes two halves: an infinite operand times a remainder of 0 is NaN
            halved = (rest == 0) & (np.abs(values) >= 2 * _LEAST)
            weights = [_rounded(np.where(halved, first / 2, first)), _rounded(np.where(halved, first / 2, rest))]
            weights = _in_three(values, first) or weights
    # A weight of -0 is a structural zero. Others keep their products: 0 times infinity is NaN.
    bits, zero = [part.view(np.uint16) for part in weights], np.uint16(0x8000 if sparse else 0)
    return [np.where(part & 0x7FFF, part, zero).view(bfloat16) for part in bits]


def _in_three(values, first):
    """Returns weights as a list of three parts of the same sign, which add up exactly. Returns None if two parts add up exactly,
    or if a weight is below `_LARGE`. Large weights cancel a constant in a mask, and an error in their last 8 bits would exceed
    the result."""
    rest = (np.asarray(values - first).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    last = values - first - rest
    if not (np.isfinite(values) & (last != 0)).any() or (np.abs(values[values != 0]) < _LARGE).any():
        return None
    whole, half = (rest == 0) & (np.abs(values) >= 4 * _LEAST), (rest != 0) & (last == 0)  # infinity times 0 is NaN
    first = np.where(whole, first / 2, first)
    rest = np.where(whole, first / 2, np.where(half, rest / 2, rest))
    last = np.where(whole, first / 2, np.where(half, rest, last))
    return [_rounded(part) for part in (first, rest, last)]


def _unique(wanted, taken):
    """Returns the name `wanted`, with a number appended if needed to make it unique. `taken` maps each name to the number of
    times it was requested."""
    name = wanted
    while name in taken:
        taken[wanted] += 1
        name = f"{wanted}_{taken[wanted]}"
    taken[name] = 1
    return name


def as_graph(name, ends, order, means=None, **facts):
    """Returns the :class:`sim.ir.graph.Graph` that computes fused nodes.

    Parameters
    ----------
    name : str
        Name of the graph.
    ends : tuple of Node
        The fused nodes that compute the results.
    order : int array
        Position in the tensors of the ends, one after the other, for every value of the result.
    means : dict of str to array, or None
        Means of the channels of each tensor, by its name in the graph. The sums then keep their means when weights are rounded.
    facts : dict
        Further attributes of the Graph, from the ONNX model.
    """
    graph, names, taken, stage_names, known = Graph(name, rounded=_CALIBRATED if means else "", **facts), {}, {}, {}, {}
    nodes, copied = in_order(*ends), 0
    for node in nodes:
        if isinstance(node, Constant):
            names[node] = graph.constant(f"{node.name}.factors", _checked(node.values, node.title))
        else:
            names[node] = graph.add_tensor(_unique(printable(node.value or node.name, 80), taken), node.shape)
    for node in (node for node in nodes if not isinstance(node, Constant)):
        if isinstance(node, Input):
            graph.inputs += (names[node],)
            continue
        if isinstance(node, Copy):
            graph.stages.append(_copying_stage(graph, node, names, _unique(node.name, stage_names)))
            continue
        own = sum(tap.weights.size for part in node.parts for tap in part.taps if tap.select is not None)
        copied += own
        if own > _MOST_CHOICES[0] or copied > _MOST_CHOICES[1]:
            raise ModelError(
                f"{node.title}: joining or copying channels needs {own} weights of 0 or 1 here and {copied} up to this node, "
                f"over {_MOST_CHOICES[0]} or {_MOST_CHOICES[1]}; insert a dense layer or a 1 x 1 convolution directly after it"
            )
        bias = _bias(node)
        for number, part in enumerate(node.parts):
            own = bias[number] if bias is not None and bias.ndim == 2 else bias
            graph.stages.append(_stage(graph, node, part, own, names, _unique(node.name, stage_names), known, means))
    graph.output, *beside = (names[end] for end in ends)
    if not beside and getattr(ends[0], "times", None) is None:
        graph.tensors[graph.output] = replace(graph.tensors[graph.output], wide=True)
    graph.output_order = None if np.array_equal(order, np.arange(sum(np.prod(end.shape) for end in ends))) else order
    inputs = [node for node in nodes if isinstance(node, Input)]
    return replace(graph, beside=tuple(beside), **_inputs(inputs, names, int(np.prod(graph.input_shape))))


def _copying_stage(graph, node, names, name):
    one, terms, first = graph.constant("one", np.ones((1, 1, 1), bfloat16)), [], 0
    for source in node.sources:
        size = prod(source.shape)
        index = np.where((node.index >= first) & (node.index < first + size), node.index - first, -1)
        copies, first = strided_copies(index), first + size
        if copies is None:
            raise ModelError(
                f"{node.title}: the arrangement of its input's values has too little order; rewrite the Reshape, Transpose or "
                "Gather before it, or cut the model before this node"
            )
        terms += [Term(names[source], one, copies=copies, fixed=True)] if copies else []
    return Stage(names[node], tuple(terms), node.shape[:2], name=name, value=node.value, title=node.title)


def _stage(graph, node, part, bias, names, name, known, means):
    terms, several = [], sum(not tap.exact and tap.matrix is None for tap in part.taps) > 1
    for tap in part.taps:
        kind = "factors" if tap.exact else f"weights{len(terms)}" if several else "weights"
        own = _terms(graph, tap, names, f"{name}.{kind}", node.title, known, means)
        if means and tap.matrix is None and not tap.exact:
            lost = lost_means(tap, graph.constants[own[0].weights], means[names[tap.source]])
            bias = (0 if bias is None else bias) + lost if lost.any() else bias
        terms += own
    return Stage(
        names[node],
        tuple(terms),
        part.size,
        start=None if bias is None else graph.constant(f"{name}.bias", bias if bias.ndim == 3 else bias[None, None]),
        pool=node.pool,
        function=_checked_function(node.function, node.title),
        softmax=bool(node.softmax),
        times=None if node.times is None else names[node.times],
        name=name,
        origin=part.origin,
        value=node.value if part is node.parts[-1] else None,
        title=node.title,
    )


def _inputs(inputs, names, size):
    first = inputs[0]
    if len(inputs) == 1 and first.table is None and len(first.places) == size:
        return {"input_order": None if np.array_equal(first.places, np.arange(size)) else first.places}
    return {"feeds": tuple(Feed(names[node], node.places, _checked_table(node)) for node in inputs)}


def _checked_table(node):
    """Returns the table of an input in binary32, or None. Refuses values that overflow in bfloat16: they are finite in ONNX."""
    if node.table is None:
        return None
    _checked(node.table, node.title)
    return np.asarray(node.table, np.float32)

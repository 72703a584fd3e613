"""Rounds fused nodes and writes them down as a :class:`sim.ir.graph.Graph`."""

import numpy as np

from ..data.printable import printable
from ..golden.arithmetic import bfloat16, round_bfloat16
from ..golden.function_tables import table_of
from ..ir.errors import ModelError
from ..ir.graph import Graph, Stage, Tensor, Term
from .fuse import in_order
from .nodes import Input

__all__ = ["as_graph"]

_LEAST = 2.0**-126  # normal number
_SPLIT = 2.0**-100  # what is left of smaller weights may be subnormal
_MOST_CHOICES = 1 << 26, 1 << 27  # weights of a node, of a network, that are 1 or 0 and only choose channels


def _checked_function(function, title):
    """A function that the core can have; `title` is that of what asks for it."""
    try:
        if function.is_table:
            table_of(function)
    except ValueError as error:
        raise ModelError(f"{title}: {error}") from None
    return function


def _rounded(weights):
    return round_bfloat16(np.asarray(weights, np.float32))


def _bias(node):
    """The bias in binary32, or None. Where a finite one becomes infinite, a sum is so that is not in ONNX."""
    if node.bias is None:
        return None
    bias = np.asarray(node.bias, np.float32)
    if (np.isinf(bias) & np.isfinite(node.bias)).any():
        raise ModelError(
            f"{node.title}: the constants that are added to it reach {np.abs(node.bias).max():.4g}, which is infinite in binary32"
        )
    return bias


def _checked(weights, title):
    """Rounded weights. Where a finite one becomes infinite, it times 0 is no number, which it is in ONNX."""
    rounded = _rounded(weights)
    if (np.isinf(rounded) & np.isfinite(weights)).any():
        largest = np.abs(weights[np.isfinite(weights)]).max()
        raise ModelError(
            f"{title}: its weights, with the constants that they are multiplied by, reach {largest:.4g}, which is "
            "infinite in bfloat16"
        )
    return rounded


def _terms(tap, names, title):
    if tap.matrix is not None:
        weights = np.broadcast_to(np.zeros((), bfloat16), tap.weights.shape)
        return [Term(names[tap.source], weights, data=names[tap.matrix], rows=tap.rows)]
    weights = [_checked(tap.weights, title)]
    if tap.exact:
        # Both parts have the same sign, so that infinity times one and infinity times the other add up to infinity.
        values = np.asarray(tap.weights, np.float32)
        first = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        first = np.where(np.abs(values) < _SPLIT, _rounded(values).astype(np.float32), first)
        rest = _rounded(np.where(np.isfinite(values), values - first, 0))
        if (rest != 0).any():  # where there is no rest, two halves: infinity times 0 would be no number
            halved = (rest == 0) & (np.abs(values) >= 2 * _LEAST)
            weights = [_rounded(np.where(halved, first / 2, first)), _rounded(np.where(halved, first / 2, rest))]
    return [Term(names[tap.source], part, tap.stride, tap.dilation, tap.padding, tap.groups, tap.exact) for part in weights]


def _unique(wanted, taken):
    """A name that is not taken yet; `taken` is {name: how often it has been wanted}."""
    name = wanted
    while name in taken:
        taken[wanted] += 1
        name = f"{wanted}_{taken[wanted]}"
    taken[name] = 1
    return name


def as_graph(name, output, order, **facts):
    """The graph of a node and all that it needs; `order` is the position in the output's tensor of every value of the result, and
    `facts` are those of the graph that come from the model."""
    tensors, names, stages, taken, stage_names = {}, {}, [], {}, {}
    nodes, copied = in_order(output), 0
    source = next((node for node in nodes if isinstance(node, Input)), None)
    for node in nodes:
        names[node] = _unique(printable(node.value or node.name, 80), taken)
        height, width, channels = node.shape
        tensors[names[node]] = Tensor(names[node], channels, height, width)
        if node is source:
            continue
        own = sum(tap.weights.size for part in node.parts for tap in part.taps if tap.select is not None)
        copied += own
        if own > _MOST_CHOICES[0] or copied > _MOST_CHOICES[1]:
            raise ModelError(
                f"{node.title}: joins or copies so many channels that {own} weights are needed for that alone, "
                f"{copied} up to here; put a dense layer or a 1 x 1 convolution right behind it"
            )
        with np.errstate(all="ignore"):
            bias = _bias(node)
            bias = None if bias is None else bias + np.float32(0)  # no -0
        for number, part in enumerate(node.parts):
            stages.append(
                Stage(
                    name=_unique(node.name, stage_names),
                    output=names[node],
                    size=part.size,
                    origin=part.origin,
                    terms=tuple(term for tap in part.taps for term in _terms(tap, names, node.title)),
                    bias=bias if bias is None or bias.ndim == 1 else bias[number],
                    pool=node.pool,
                    function=_checked_function(node.function, node.title),
                    softmax=bool(node.softmax),
                    times=None if node.times is None else names[node.times],
                    value=node.value if part is node.parts[-1] else None,
                    title=node.title,
                )
            )
    order = None if np.array_equal(order, np.arange(np.prod(output.shape))) else order
    return Graph(name, tensors, names[source], names[output], tuple(stages), output_order=order, **facts)

"""The binary64 network, which is the network after fusion and before rounding, and bounds on rounding errors.

Two separate checks use it. The first compares it with the ONNX model: the tensors of an interpreter must be within the error
bounds of binary32 (:func:`run_exact`). The second compares each stage of the golden model with the same stage of the binary64
network, on the golden model's bfloat16 operands (:func:`check_stages`). The difference must be within the bounds of the roundings
of that one stage, so the bounds do not grow with the depth of the network.
"""

from dataclasses import dataclass

import numpy as np

from ..functions.functions import NONE
from ..fusion.nodes import Constant, Copy, Input
from ..golden.network import core_input, run_graph
from ..ir.model_ends import softmax
from ..ir.sample_order import Feed
from ..ir.stage import span

__all__ = ["BINARY32", "BFLOAT16", "Rounding", "Breakout", "run_exact", "check_stages", "tensors_of"]

_TINY = 2.0**-126
_NOTHING = 104.0  # exp of a number this far below the maximum of a row is 0 in binary32
_HUGE = 2.0**126  # a partial sum may overflow in binary32 if the sum reaches this


@dataclass(frozen=True)
class Rounding:
    """The relative rounding errors of one implementation of a network."""

    weight: float  # largest relative error of a weight
    term: float  # error of a sum, relative to the sum of the magnitudes of its products
    point: float  # relative error of a function's argument, for functions by lookup table
    value: float  # relative error of a function's result
    curve: float  # additional error of a function that is not piecewise linear, relative to 1 + abs(argument)
    result: float  # relative error of a result written to memory


def BINARY32(unit=2.0**-24):
    """Returns the rounding errors of an interpreter with the unit roundoff `unit`.

    The bounds are 64 times the likely error of one operation. This covers many operations, whose errors have random signs.
    """
    return Rounding(weight=0, term=64 * unit, point=0, value=64 * unit, curve=64 * unit, result=0)


#: Worst-case errors of one stage of the core: weights and results in bfloat16, sums in binary32, functions by lookup table.
BFLOAT16 = Rounding(weight=1.01 * 2.0**-8, term=0, point=2.0**-8, value=2.0**-7, curve=0, result=1.01 * 2.0**-8)

#: Functions whose error is relative to the result only.
_STRAIGHT = ("relu", "leaky_relu", "clip", "abs", "root", "reciprocal", "inverse_root")


# One node


def _windows(values, tap, size):
    """Yields (ky, kx, operands (batch, height, width, channels)) for each kernel position of a tap. Operands outside the source
    are 0."""
    batch, height, width, channels = values.shape
    need = [span(count, *sizes) for count, *sizes in zip(size, tap.stride, tap.kernel, tap.dilation)]
    padded = np.zeros((batch, *need, channels))
    source, target = [], []
    for have, wanted, before in zip((height, width), need, tap.padding):
        source.append(slice(max(0, -before), max(0, min(have, wanted - before))))
        target.append(slice(max(0, before), max(0, before) + max(0, source[-1].stop - source[-1].start)))
    padded[:, target[0], target[1]] = values[:, source[0], source[1]]
    for ky in range(tap.kernel[0]):
        for kx in range(tap.kernel[1]):
            rows, columns = (
                slice(k * dilation, k * dilation + span(count, stride, 1, 1), stride or None)
                for k, dilation, count, stride in zip((ky, kx), tap.dilation, size, tap.stride)
            )
            yield ky, kx, np.broadcast_to(padded[:, rows, columns], (batch, *size, channels))


def _sum(tap, values, size, change):
    """Returns the sums of a tap over `change(values) * change(weights)`: binary64 (batch, height, width, channels)."""
    groups, outputs = tap.groups, tap.weights.shape[3]
    total = np.zeros((len(values), *size, outputs))
    for ky, kx, part in _windows(change(values), tap, size):
        weights = change(np.asarray(tap.weights[ky, kx], np.float64))
        if groups == 1:
            total += part @ weights
        elif groups == outputs == part.shape[3]:
            total += part * weights[0]
        else:
            part = part.reshape(-1, groups, weights.shape[0]).transpose(1, 0, 2)
            weights = weights.reshape(-1, groups, outputs // groups).transpose(1, 0, 2)
            total += (part @ weights).transpose(1, 0, 2).reshape(total.shape)
    return total


def _product(tap, values, matrices):
    """Multiplies values (batch, height, width, inputs) by the matrix of each sample, which another node computes: (batch, 1,
    positions, channels)."""
    matrices = matrices[:, 0] if tap.rows else matrices[:, 0].swapaxes(1, 2)
    return (values.reshape(len(values), -1, values.shape[3]) @ matrices).reshape(*values.shape[:3], -1)


def _pooled(values, pool):
    batch, height, width, channels = values.shape
    result = np.full((batch, *pool.size, channels), -np.inf)
    firsts = [np.arange(count) * stride - before for count, stride, before in zip(pool.size, pool.stride, pool.padding)]
    for wy in range(pool.window[0]):
        for wx in range(pool.window[1]):
            y, x = firsts[0] + wy * pool.dilation[0], firsts[1] + wx * pool.dilation[1]
            rows, columns = np.flatnonzero((y >= 0) & (y < height)), np.flatnonzero((x >= 0) & (x < width))
            place = np.ix_(range(batch), rows, columns)
            result[place] = np.maximum(result[place], values[np.ix_(range(batch), y[rows], x[columns])])
    return result


def _sums(node, part, number, tensors, errors, rounding):
    """Computes the sums of one region, `part`, of a node, and bounds of their errors. `number` is the index of the region."""
    bias = np.zeros(1) if node.bias is None else np.asarray(node.bias, np.float64)
    bias = bias[number] if bias.ndim == 2 else bias
    total, size = bias, np.abs(bias)
    depth, weight, spread, least = 2, 0, 0, _TINY
    for tap in part.taps:
        values = tensors[tap.source]
        if tap.matrix is not None:
            other = tensors[tap.matrix]
            total, size = total + _product(tap, values, other), size + _product(tap, np.abs(values), np.abs(other))
            depth += values.shape[3]
            least = least + depth * _TINY * (1 + np.abs(values).max(initial=0) + np.abs(other).max(initial=0))
            if errors is not None:
                spread = spread + _product(tap, np.square(errors[tap.source]), np.square(other))
                spread = spread + _product(tap, np.square(values), np.square(errors[tap.matrix]))
            continue
        magnitude = _sum(tap, values, part.size, np.abs)
        total = total + _sum(tap, values, part.size, lambda array: array)
        size = size + magnitude
        weight = weight + magnitude * (rounding.weight**2 if tap.exact else rounding.weight)
        depth += int(np.prod(tap.weights.shape[:3]))
        least = least + depth * _TINY * (1 + np.abs(values).max(initial=0))  # products and weights flushed to zero
        if errors is not None and errors[tap.source].any():  # the errors of many operands are independent: their squares add up
            spread = spread + _sum(tap, errors[tap.source], part.size, np.square)
    # A column of cells adds one product after the other. In the worst case, each addition rounds the whole partial sum.
    term = rounding.term or depth * 2.0**-24
    error = np.hypot(np.sqrt(spread), weight + term * size + least)
    total, error = (np.broadcast_to(array, np.broadcast_shapes(np.shape(total), np.shape(error))) for array in (total, error))
    error = np.where(size < _HUGE, error, np.inf)
    return total, np.where(np.isfinite(error), error, np.inf)


def _function(function, values, errors, rounding):
    """Applies an activation function to values. Returns the results and bounds of their errors, which also hold near kinks and
    jumps of the function."""
    if function == NONE:
        return values, errors
    exact = function.exact
    result = exact(values)
    away = errors if function.name == "relu" else errors + rounding.point * np.abs(values)
    error = np.maximum.reduce([np.abs(exact(values + part * away) - result) for part in (-1, -0.5, 0.5, 1)])
    if function.name != "relu":
        error = error + rounding.value * np.abs(result) + 2 * _TINY
    if function.name not in _STRAIGHT:
        error = error + rounding.curve * (1 + np.abs(values))
    return result, np.where(np.isfinite(error), error, np.inf)


def _moved(node, tensors):
    """Returns the values of a :class:`.Copy` from the tensors of its sources, {node: (batch, height, width, channels)}."""
    parts = [tensors[one].reshape(len(tensors[one]), -1) for one in node.sources]
    values = np.concatenate([*parts, np.zeros((len(parts[0]), 1))], axis=1)  # place -1 is the last: 0
    return values[:, node.index].reshape(-1, *node.shape)


def _factors(node, tensors, errors, rounding):
    """Returns the factors of a product, and bounds of their errors."""
    if isinstance(node, Constant):
        return node.values, rounding.weight * np.abs(node.values)
    return tensors[node], 0 if errors is None else errors[node]


def _node(node, tensors, errors, rounding, wide=False):
    """Computes a node from the tensors of its sources, {node: (batch, height, width, channels)}. Returns the node's tensor and
    bounds of its rounding errors."""
    if isinstance(node, Copy):
        moved = _moved(node, tensors)
        return moved, _TINY + (np.zeros_like(moved) if errors is None else _moved(node, errors))
    batch = len(tensors[node.parts[0].taps[0].source])
    result, bounds = np.zeros((batch, *node.shape)), np.zeros((batch, *node.shape))
    for number, part in enumerate(node.parts):
        values, error = _sums(node, part, number, tensors, errors, rounding)
        if node.pool:
            values, error = _pooled(values, node.pool), _pooled(error, node.pool)
        if node.softmax:
            shape, top = values.shape, (values - error).max(axis=3, keepdims=True)
            error = np.where(np.isneginf(values) | (values + error < top - _NOTHING), 0, error)  # as in masks
            values = softmax(values.reshape(-1, shape[3])).reshape(shape)
            error = values * (np.expm1(2 * error.max(axis=3, keepdims=True)) + rounding.value) + rounding.curve + 2 * _TINY
        else:
            values, error = _function(node.function, values, error, rounding)
        if node.times is not None:
            factor, own = _factors(node.times, tensors, errors, rounding)
            error = (error + rounding.result * np.abs(values)) * np.abs(factor) + np.abs(values) * own
            values = values * factor
            error = error + (rounding.result or rounding.term) * np.abs(values)
        (top, left), (height, width) = part.origin, values.shape[1:3]
        result[:, top : top + height, left : left + width] = values
        error = error + (2.0**-24 if wide else rounding.result) * np.abs(values) + (rounding.result > 0) * _TINY
        bounds[:, top : top + height, left : left + width] = np.where(np.abs(values) < _HUGE, error, np.inf)
    return result, bounds


# Whole networks


def _arranged(origin, samples):
    """Returns {input node: binary64 (count, height, width, channels)} for float samples (count, size)."""
    samples = np.asarray(samples, np.float64).reshape(len(samples), -1)
    found = {}
    for node in origin.nodes:
        if isinstance(node, Input):
            found[node] = Feed(node.name, node.places, node.table).of(samples).reshape(-1, *node.shape)
    return found


def run_exact(origin, samples, rounding):
    """Computes the binary64 network for samples, float (count, size).

    Returns the results, and bounds of the errors of an interpreter with this :class:`Rounding`, both binary64 (count, results). A
    bound is infinite where a value may leave the range of binary32.
    """
    with np.errstate(all="ignore"):
        tensors = _arranged(origin, samples)
        errors = {node: np.zeros_like(values) for node, values in tensors.items()}
        made = [node for node in origin.nodes if node not in tensors]
        last = {operand: node for node in made for operand in _operands(node)}
        for node in made:
            tensors[node], errors[node] = _node(node, tensors, errors, rounding)
            for operand in _operands(node) - {None, *origin.ends}:
                if last[operand] is node:  # constants have no tensor
                    tensors.pop(operand, None), errors.pop(operand, None)
        ends = ([array[end].reshape(len(samples), -1) for end in origin.ends] for array in (tensors, errors))
        return tuple(np.concatenate(parts, axis=1)[:, origin.order] for parts in ends)


def tensors_of(network, samples):
    """Computes the golden model for samples (count, size). Returns {node: binary64 (count, height, width, channels)}, without
    nodes that the graph computes within another stage."""
    nodes = network.origin.nodes
    rounded = core_input(network, np.asarray(samples, np.float32))
    _, kept = run_graph(network, rounded, keep=True)
    kept |= network.arrange_inputs(rounded)
    named = zip(nodes, network.sampled, strict=True)
    return {node: kept[name].astype(np.float64) for node, name in named if name in kept}


@dataclass(frozen=True)
class Breakout:
    """The stage with the largest error relative to its bound."""

    title: str  # title of the stage's operator
    share: float  # Largest ratio of a difference to its bound. A ratio above 1 is a violation.
    #: difference, bound: The largest violation and its bound. Without a violation: the difference and the bound with the ratio
    #: `share`.
    difference: float
    bound: float


def _operands(node):
    if isinstance(node, Copy):
        return {*node.sources}
    taps = [tap for part in node.parts for tap in part.taps]
    return {node.times, *(tap.source for tap in taps), *(tap.matrix for tap in taps)}


def check_stages(network, samples):
    """Compares every stage of the golden model with the same stage of the binary64 network on the same operands. Operands within
    another stage are computed in binary64. Their bounds include the rounding of the operands that this stage may read unrounded.
    Returns a :class:`Breakout`."""
    worst = Breakout("", 0.0, 0.0, 0.0)
    with np.errstate(all="ignore"):
        tensors = tensors_of(network, samples)
        within = {node for node in network.origin.nodes if node not in tensors}
        # Twice: among thousands of rows, the errors of some operands of a mean add up to more than their squares tell.
        errors = {node: 2 * BFLOAT16.result * np.abs(values) for node, values in tensors.items()} if within else None
        for node in network.origin.nodes:
            if isinstance(node, Input):
                continue
            wide = network.origin.ends == (node,) and getattr(node, "times", None) is None
            inner = node in within or not within.isdisjoint(_operands(node))
            exact, bounds = _node(node, tensors, errors if inner else None, BFLOAT16, wide=wide)
            if node in within:
                tensors[node], errors[node] = exact, bounds
                continue
            difference = np.abs(tensors[node] - exact)
            difference = np.where(np.isnan(difference) & np.isfinite(exact), np.inf, difference)
            share = np.where(np.isfinite(bounds) & np.isfinite(exact), difference / np.maximum(bounds, 1e-300), 0)
            if share.size and share.max() > worst.share:
                place = np.where(share > 1, difference, 0).argmax() if share.max() > 1 else share.argmax()
                worst = Breakout(node.title, float(share.max()), float(difference.flat[place]), float(bounds.flat[place]))
    return worst

"""A network of :class:`sim.ir.graph.Graph` in binary64, written a second time without rounding, and its finite differences."""

from dataclasses import replace

import numpy as np

from amaranth_tpu.sim.ir.stage import ChannelNorm


def _copied(source, term, size, channels):
    """Returns a copy of values (batch, values) by strides, value by value."""
    result = np.zeros((len(source), size[0] * size[1] * channels))
    for one in term.copies:
        for steps in np.ndindex(*(count for count, _, _ in one.axes)):
            read, written = (
                first + sum(step * axis[place] for step, axis in zip(steps, one.axes))
                for first, place in ((one.source, 1), (one.result, 2))
            )
            result[:, written] = source[:, read]
    return result.reshape(len(source), *size, channels)


def _product(source, weights, term, size, outputs):
    """Returns one term: float64 (batch, height, width, channels). Loops over kernel positions and groups."""
    batch, height, width, channels = source.shape
    if term.copies:
        return _copied(source.reshape(batch, -1), term, size, outputs)
    if term.apart != (1, 1):
        apart = np.zeros((batch, height * term.apart[0], width * term.apart[1], channels))
        apart[:, :: term.apart[0], :: term.apart[1]] = source
        return _product(apart, weights, replace(term, apart=(1, 1)), size, outputs)
    plain = term.kernel == term.stride == (1, 1) and term.padding == (0, 0) and size == (height, width)
    if plain and term.groups == channels and weights.shape[-3:-1] == (1, 1):
        return source * weights
    weights = weights.reshape(len(weights), *term.kernel, -1, weights.shape[-1])
    if term.swapped:
        weights = weights.swapaxes(3, 4)
    inputs, outputs = weights.shape[3], weights.shape[4] // term.groups
    total = np.zeros((batch, *size, outputs * term.groups))
    padded = np.zeros((batch, *(2 * (have + 8) for have in (height, width)), channels))
    padded[:, 8 : 8 + height, 8 : 8 + width] = source
    for ky, kx, group in np.ndindex(*term.kernel, term.groups):
        first = [8 + k * apart - before for k, apart, before in zip((ky, kx), term.dilation, term.padding)]
        rows, columns = (slice(start, start + by * count, by) for start, by, count in zip(first, term.stride, size))
        seen = padded[:, rows, columns, group * inputs : (group + 1) * inputs]
        part = slice(group * outputs, (group + 1) * outputs)
        total[..., part] += np.einsum(
            "byxc,bco->byxo", seen, np.broadcast_to(weights[:, ky, kx, :, part], (batch, inputs, outputs))
        )
    return total


def _softmax(values):
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _sigmoid(values):
    return (1 + np.tanh(values / 2)) / 2


def loss(network, values, targets, counted=None, choices=None, kind="cross-entropy"):
    """Returns the sum over samples and positions of the cross-entropy, or over all numbers of the loss `kind`. Of the squared
    error, it is the half. `kind` may be a function of results and targets.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    values : dict of str to float64 array (batch or 1, height, width, channels)
        Inputs and parameters.
    targets, counted : float64 array (batch, height, width, classes or 1)
    choices : dict
        The first call stores in it the results of ReLU that are above 0 and the largest positions of windows. Later calls reuse
        these choices, so that ReLU and maxima are linear.
    """
    values = {name: np.asarray(one, float)[None] for name, one in network.constants.items()} | values
    choices = {} if choices is None else choices
    batch = len(targets)
    for stage in network.stages:
        total = np.zeros((batch, *stage.size, network.tensors[stage.output].channels))
        if stage.start:
            total = total + values[stage.start]
        for term in stage.terms:
            source = np.broadcast_to(values[term.source], (batch, *values[term.source].shape[1:]))
            total = total + _product(source, values[term.weights], term, stage.size, total.shape[3])
        if stage.pool:
            (height, width), (down, across) = stage.pool.size, stage.pool.window
            windows = total[:, : height * down, : width * across].reshape(batch, height, down, width, across, -1)
            windows = windows.swapaxes(2, 3).reshape(batch, height, width, down * across, -1)
            place = choices.setdefault((stage.output, "largest"), windows.argmax(axis=3))
            total = np.take_along_axis(windows, place[:, :, :, None], 3)[:, :, :, 0]
        if isinstance(stage.norm, ChannelNorm):
            total = total - total.mean(axis=(0, 1, 2))
            total = total / np.sqrt((total**2).mean(axis=(0, 1, 2)) + stage.norm.epsilon)
        elif stage.norm:
            total = total - total.mean(axis=-1, keepdims=True) if stage.norm.centred else total
            total = total / np.sqrt((total**2).mean(axis=-1, keepdims=True) + stage.norm.epsilon)
        if stage.softmax:
            total = _softmax(total)
        elif stage.function.name == "relu":
            total = total * choices.setdefault((stage.output, "above"), total > 0)
        elif stage.function.is_table:
            total = stage.function.exact(total)
        if stage.times:
            total = total * values[stage.times]
        values[stage.output] = total
    if callable(kind):
        losses = kind(total, targets)
        return float((losses if counted is None else losses * counted).sum())
    if kind != "cross-entropy":
        error = total - targets
        losses = {
            "mse": lambda: error**2 / 2,
            "mae": lambda: np.sqrt(error**2),
            "huber": lambda: np.where(error**2 < 1, error**2 / 2, np.sqrt(error**2) - 0.5),
            "binary-cross-entropy": lambda: -targets * np.log(_sigmoid(total)) - (1 - targets) * np.log(_sigmoid(-total)),
        }[kind]().sum(axis=-1, keepdims=True)
        return float((losses if counted is None else losses * counted).sum())
    losses = -(targets * np.log(_softmax(total))).sum(axis=-1, keepdims=True)
    return float((losses if counted is None else losses * counted).sum())


def gradient_errors(rng, network, given, targets, gradients, counted=None, count=8, step=1e-5, kind="cross-entropy"):
    """Compares some elements of each gradient with central differences. Returns {name: relative error}.

    The error of a gradient of few elements, which may cancel out, is relative to the other gradients too.

    Parameters
    ----------
    given : dict of str to array (batch or 1, height, width, channels)
        Inputs and parameters.
    gradients : dict of str to array
        By name of the input or parameter.
    """
    choices, values = {}, {name: np.asarray(one).astype(float) for name, one in given.items()}
    arguments = (np.asarray(targets).astype(float), None if counted is None else np.asarray(counted).astype(float), choices, kind)
    loss(network, values, *arguments)
    found = {}
    for name, gradient in gradients.items():
        flat, exact = np.asarray(gradient).astype(float).reshape(-1), []
        places = rng.choice(flat.size, min(count, flat.size), replace=False)
        for place in places:
            ends = []
            for move in (step, -step):
                moved = values[name].copy()
                moved.reshape(-1)[place] += move
                ends.append(loss(network, values | {name: moved}, *arguments))
            exact.append((ends[0] - ends[1]) / (2 * step))
        found[name] = np.linalg.norm(flat[places] - exact), np.linalg.norm(exact)
    some = 0.1 * np.median([length for _, length in found.values()])
    return {name: distance / max(length + some, 1e-6) for name, (distance, length) in found.items()}
